// libgomp at a limit of threads: a program that may not have one more thread runs a parallel region.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

void stay() {
    for (;;) {
        pause();
    }
}

}  // namespace

extern "C" int run_in_parallel(int threads) {
    int sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += 1;
    return sum;
}

/// No stack of a further thread fits into the address space any more; what runs at the program's end stays there.
extern "C" void limit_threads() {
    long pages = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld", &pages) != 1) {
            std::abort();
        }
        std::fclose(file);
    }
    const rlim_t bytes = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
    const rlimit limit{bytes + (1 << 20), RLIM_INFINITY};
    std::atexit(stay);
    setrlimit(RLIMIT_AS, &limit);
}
