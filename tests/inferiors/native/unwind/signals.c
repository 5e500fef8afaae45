/* Signal handlers: nested, on the same and on an alternate stack, after a stack overflow, after a jump to nowhere. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))
static volatile int sink;
static void *volatile nowhere;
static char alternate[1 << 16];

KEEP static void arrived(void) {
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

KEEP void inner_handler(int number) {
    sink += number;
    if (number != SIGUSR2)
        arrived();
}

KEEP void outer_handler(int number) {
    sink += number;
    raise(SIGUSR2);
    sink += number;
    raise(SIGTERM);
    sink++;
}

KEEP void crash_handler(int number) {
    sink += number;
    arrived();
}

KEEP int overflow(int n) {
    volatile char buffer[100];
    buffer[n & 63] = n;
    return overflow(n + 1) + buffer[n & 31];
}

KEEP void call_nowhere(void) {
    ((void (*)(void))nowhere)();
    sink++;
}

KEEP void write_nowhere(void) {
    *(volatile int *)nowhere = 1;
    sink++;
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(number, &action, NULL);
}

static void *body(void *what) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    if (!strcmp(what, "nested"))
        raise(SIGUSR1);
    else if (!strcmp(what, "overflow"))
        sink += overflow(1);
    else if (!strcmp(what, "nowhere"))
        call_nowhere();
    else if (!strcmp(what, "stray"))
        nowhere = alternate, call_nowhere(); /* mapped, not executable */
    else
        write_nowhere();
    return NULL;
}

int main(int argc, char **argv) {
    int flags = argc > 2 && !strcmp(argv[2], "alternate") ? SA_ONSTACK : 0;
    handle(SIGUSR1, outer_handler, 0);
    handle(SIGUSR2, inner_handler, flags);
    handle(SIGTERM, inner_handler, flags);
    handle(SIGSEGV, crash_handler, flags);
    if (argc > 3) {
        pthread_t thread;
        pthread_create(&thread, NULL, body, argv[1]);
        pthread_join(thread, NULL);
    } else {
        body(argv[1]);
    }
    return 0;
}
