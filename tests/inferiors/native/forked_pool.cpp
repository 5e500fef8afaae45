// A pool of one std::thread that squares numbers. square() waits for it on a condition variable, or spins. Needs no torch.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

static std::mutex guard;
static std::condition_variable changed;
static std::atomic<bool> has_job{false}, is_done{false};
static long number;

static void work() {
    for (;;) {
        std::unique_lock<std::mutex> lock(guard);
        changed.wait(lock, [] { return has_job.load(); });
        number *= number;
        has_job = false;
        is_done = true;
        changed.notify_all();
    }
}

extern "C" void start_pool() { std::thread(work).detach(); }

extern "C" __attribute__((noinline)) long square(long value, int spins) {
    {
        std::unique_lock<std::mutex> lock(guard);
        number = value;
        is_done = false;
        has_job = true;
        changed.notify_all();
        if (!spins)
            changed.wait(lock, [] { return is_done.load(); });
    }
    while (!is_done)
        __builtin_ia32_pause();
    return number;
}

// The same without the pool: it spins until ``*stop``, as code does that computes in short loops.
extern "C" __attribute__((noinline)) void compute(volatile long *stop) {
    for (volatile long sum = 0; !*stop;)
        sum += 1;
}
