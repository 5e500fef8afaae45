/* Functions of every shape that unwind information has to describe; a debugger steps through main(). */
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEEP __attribute__((noinline, noclone))
volatile int sink;

KEEP int leaf(int a) { return a * 3 + sink; }

KEEP int pushes(int a, int b, int c, int d, int e, int f) {
    int x = leaf(a), y = leaf(b), z = leaf(c), u = leaf(d), v = leaf(e), w = leaf(f);
    return leaf(x) + leaf(y) + x * y + z * u + v * w + leaf(z + u + v + w);
}

KEEP int many_arguments(int a, int b, int c, int d, int e, int f, int g, int h, int i) {
    return leaf(a + i) + leaf(b + h) + leaf(c + g) + d + e + f;
}

KEEP int big_frame(int a) {
    volatile char buffer[20000];
    buffer[a] = 1;
    return leaf(buffer[a]) + pushes(a, 1, 2, 3, 4, 5);
}

KEEP int dynamic(int n) {
    char *p = alloca(n);
    memset(p, n, n);
    return leaf(p[n - 1]) + pushes(p[0], 1, 2, 3, 4, 5);
}

KEEP int touch(volatile int *p) { return *p + leaf(*p); }

KEEP int realigned(int n) { /* the stack pointer is rounded down: the CFA comes from a saved copy */
    volatile int value __attribute__((aligned(64))) = n;
    return touch(&value) + touch(&value);
}

KEEP int realigned_dynamic(int n) {
    volatile int value __attribute__((aligned(128))) = n;
    char *p = alloca(n);
    memset(p, 1, n);
    return touch(&value) + p[n - 1];
}

KEEP int variadic(int n, ...) {
    va_list list;
    int total = 0;
    va_start(list, n);
    while (n-- > 0)
        total += leaf(va_arg(list, int));
    va_end(list);
    return total;
}

KEEP int early_out(int n) { /* shrink-wrapped: the frame is made on one path only, two epilogues */
    if (n < 10)
        return n;
    return pushes(n, n, n, n, n, n) + leaf(n);
}

KEEP int recursive(int n) { return n ? recursive(n - 1) + leaf(n) : 1; }

static jmp_buf place;
KEEP void jumps(int n) {
    if (n)
        jumps(n - 1);
    else
        longjmp(place, 1);
    sink++;
}

KEEP int guarded(int n) {
    if (setjmp(place) == 0)
        jumps(n);
    return leaf(n);
}

KEEP int by_pointer(int (*f)(int), int n) { return f(n) + 1; }
KEEP int tail(int n) { return by_pointer(leaf, n); }

int main(int argc, char **argv) {
    struct timespec now;
    char text[64];
    sink = leaf(argc);
    sink += pushes(1, 2, 3, 4, 5, argc);
    sink += many_arguments(1, 2, 3, 4, 5, 6, 7, 8, argc);
    sink += dynamic(argc + 40);
    sink += realigned(argc);
    sink += realigned_dynamic(argc + 30);
    sink += variadic(3, 1, 2, 3);
    sink += early_out(argc) + early_out(argc + 20);
    sink += recursive(6);
    sink += guarded(3);
    sink += tail(argc) + by_pointer(abs, argc);
    clock_gettime(CLOCK_MONOTONIC, &now); /* vdso */
    sink += (int)now.tv_nsec;
    sink += (int)strlen(argv[0]) + atoi("77");
    snprintf(text, sizeof text, "%d", sink);
    sink += big_frame(argc);
    sink += atoi(text); /* the second time through a linkage stub */
    return 0;
}
