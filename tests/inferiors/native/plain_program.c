// A program without torch or Python whose threads stand still in a state that it describes on standard output (JSON,
// one line): what every target must report of it.
//   plain_program THREADS           all threads wait in pause(2)
//   plain_program THREADS crash     ... and the last one then reads address 0xdead0000
//   plain_program 0 count           prints a growing number for ever: whether it goes on can be seen
//   plain_program 0 signals         counts SIGRTMIN (which queues) and prints the count
//   plain_program 0 vfork           its main thread is in the uninterruptible wait of vfork
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x5ca1ab1e00000000ul
static const char text[] = "read-only data that no core contains";
static char pattern[3 * 4096] __attribute__((aligned(4096)));
static unsigned long stack_of[4096], tls_of[4096];
static int tid_of[4096], crash;
static pthread_barrier_t ready;
static volatile sig_atomic_t signals;

// pause() for ever with known registers; it never returns, so it may use them all.
static void __attribute__((noreturn)) stand_still(unsigned long magic) {
    __asm__ volatile(
        "mov %0, %%rbx\n lea 1(%0), %%r12\n lea 2(%0), %%r13\n lea 3(%0), %%r14\n lea 4(%0), %%r15\n"
        "1: mov $34, %%eax\n syscall\n jmp 1b\n" ::"r"(magic));
    __builtin_unreachable();
}

static void describe_self(long index) {
    char name[16];
    snprintf(name, sizeof name, "worker (%ld)", index);
    pthread_setname_np(pthread_self(), name);
    tid_of[index] = syscall(SYS_gettid);
    stack_of[index] = (unsigned long)__builtin_frame_address(0);
    tls_of[index] = (unsigned long)pthread_self();
}

static void *worker(void *argument) {
    long index = (long)argument;
    describe_self(index);
    pthread_barrier_wait(&ready);
    if (crash == index) {
        usleep(200000);
        *(volatile char *)0xdead0000ul;
    }
    stand_still(MAGIC + 16 * index);
}

static void print_truth(int threads) {
    printf("{\"pid\": %d, \"pattern\": %lu, \"text\": %lu, \"code\": %lu, \"entry\": %lu, \"magic\": %lu, \"code_bytes\": \"",
           getpid(), (unsigned long)pattern, (unsigned long)text, (unsigned long)stand_still, getauxval(AT_ENTRY), MAGIC);
    for (int i = 0; i < 16; i++) printf("%02x", ((unsigned char *)stand_still)[i]);
    printf("\", \"threads\": [");
    for (int i = 0; i <= threads; i++)
        printf("%s{\"tid\": %d, \"stack\": %lu, \"tls\": %lu}", i ? ", " : "", tid_of[i], stack_of[i], tls_of[i]);
    printf("]}\n");
    fflush(stdout);
}

static void count_signal(int number) { signals += number == SIGRTMIN; }

static void __attribute__((noreturn)) print_counts(int of_signals) {
    if (of_signals) signal(SIGRTMIN, count_signal);
    printf("%d\n", getpid());
    for (long count = 0;; count++, usleep(10000)) {
        printf("%ld\n", of_signals ? (long)signals : count);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 3;
    const char *mode = argc > 2 ? argv[2] : "";
    if (!strcmp(mode, "count") || !strcmp(mode, "signals")) print_counts(mode[0] == 's');
    if (!strcmp(mode, "vfork")) {
        printf("%d\n", getpid());
        fflush(stdout);
        if (vfork() == 0)
            for (;;) pause();
    }
    crash = strcmp(mode, "crash") ? 0 : threads;
    for (unsigned i = 0; i < sizeof pattern; i++) pattern[i] = (char)(i * 7 + i / 256);
    pthread_barrier_init(&ready, NULL, threads + 1);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    for (long i = 1; i <= threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, worker, (void *)i)) abort();
    }
    describe_self(0);
    pthread_barrier_wait(&ready);
    print_truth(threads);
    stand_still(MAGIC);
}
