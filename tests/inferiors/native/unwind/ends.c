/* Calls that do not return, as the last instruction of their function, and a child of vfork and of clone(2). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP static void arrived(void) {
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

KEEP __attribute__((noreturn)) void last_words(const char *text) {
    fputs(text, stderr);
    arrived();
    abort();
}

KEEP __attribute__((noreturn)) void never(int n) { last_words(n ? "never\n" : "no\n"); }
KEEP int picks(int n) {
    if (n == 1)
        never(n);
    return n * 2;
}

KEEP static void *idle(void *arg) {
    (void)arg;
    for (;;)
        pause();
}

KEEP static int compare(const void *a, const void *b) { /* called back through libc */
    picks(1);
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv) {
    int numbers[4] = {4, 3, 2, argc};
    pthread_t thread;
    pthread_create(&thread, NULL, idle, NULL);
    if (argc > 1 && !strcmp(argv[1], "callback"))
        qsort(numbers, 4, sizeof numbers[0], compare);
    return picks(argc > 1 ? 1 : 0) + numbers[0];
}
