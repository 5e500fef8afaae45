// Crashes of every kind, and signal handlers that hide them. Needs no torch.
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

extern "C" typedef struct _object PyObject;
extern "C" PyObject *PyList_New(long);

struct Picture {
    long width, height;
};
enum { OnOtherStack = 1, Nested = 2, Aborts = 4 };

extern "C" __attribute__((noinline)) long decode_frame(const Picture *picture) {
    return *(volatile const long *)&picture->height + 1;
}

static void raise_again(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    raise(number);
}

static void plain_handler(int number) {
    signal(number, SIG_DFL);
    raise_again(number);
}

static void aborting_handler(int) { abort(); }

static struct sigaction inner;

static void outer_handler(int number, siginfo_t *, void *) {
    sigaction(number, &inner, nullptr);
    raise_again(number);
}

extern "C" void install_handlers(int number, int how) {
    struct sigaction action;
    int flags = 0;
    if (how & OnOtherStack) {
        stack_t stack;
        memset(&stack, 0, sizeof stack);
        stack.ss_size = 1 << 16;
        stack.ss_sp = malloc(stack.ss_size);
        sigaltstack(&stack, nullptr);
        flags = SA_ONSTACK;
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = how & Aborts ? aborting_handler : plain_handler;
    action.sa_flags = flags;
    sigaction(number, &action, nullptr);
    if (how & Nested) {
        memset(&action, 0, sizeof action);
        action.sa_sigaction = outer_handler;
        action.sa_flags = flags | SA_SIGINFO;
        sigaction(number, &action, &inner);
    }
}

extern "C" __attribute__((noinline)) long divide_by(long divisor) { return 1000 / divisor + 1; }
extern "C" __attribute__((noinline)) void run_trap() { __builtin_trap(); }
extern "C" __attribute__((noinline)) void run_bytes(void *code) { ((void (*)())code)(); }
#undef NDEBUG
extern "C" __attribute__((noinline)) void check_width(long width) { assert(width > 0); }

extern "C" __attribute__((noinline)) void free_twice() {
    char *volatile block = (char *)malloc(2000), *volatile after = (char *)malloc(2000);
    free(block);
    free(block);
    free(after);
}

// Writes past the end of a block: malloc notices it later, when the block is freed.
extern "C" __attribute__((noinline)) void overrun_heap() {
    char *volatile block = (char *)malloc(2000), *volatile after = (char *)malloc(2000);
    for (int i = 0; i < 2016; i++) ((volatile char *)block)[i] = 0x41;
    free(after);
}

extern "C" __attribute__((noinline, optimize("stack-protector-all"))) void overrun_stack(const char *text, int size) {
    volatile char name[16];
    for (int i = 0; i < size; i++) name[i] = text[i];
}

// A frame of 384 kB.
extern "C" __attribute__((noinline)) int fill_large_frame(int value) {
    volatile char room[384 << 10];
    for (unsigned i = 0; i < sizeof room; i += 4096) room[sizeof room - 1 - i] = value;
    return room[value];
}

extern "C" __attribute__((noinline, optimize("O0"))) int recurse(int depth) { return depth ? recurse(depth - 1) + (depth & 1) : 0; }

static void *fill(void *) {
    PyObject *volatile made = PyList_New(3);
    return made;
}

extern "C" void use_python_in_thread() {
    pthread_t thread;
    pthread_create(&thread, nullptr, fill, nullptr);
    pthread_join(thread, nullptr);
}
