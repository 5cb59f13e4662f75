#include <sinter/runtime/thread_pool.h>

#include <sinter/ir/diagnostic.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace sinter {
namespace {

// True on a thread that is running a piece: a nested call must not wait for threads that may all be
// waiting themselves.
thread_local bool inside_piece = false;

}  // namespace

struct ThreadPool::Job {
  int64_t begin = 0, count = 0, pieces = 0;
  void* object = nullptr;
  Piece piece = nullptr;
  // Guarded by State::mutex.
  int64_t next = 0, unfinished = 0;
  int64_t failed_piece = -1;
  std::exception_ptr failure;

  int64_t cut(int64_t i) const {
    // Without the product count * i, which could overflow.
    return begin + count / pieces * i + std::min(i, count % pieces);
  }
  void call(int64_t i) const { piece(object, cut(i), cut(i + 1)); }
};

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work, done;
  std::deque<Job*> jobs;  // those with pieces not yet taken
  bool stopping = false;
  std::vector<std::thread> threads;

  // Takes one piece of `job` and runs it; `lock` is held on entry and on return.
  void take(Job& job, std::unique_lock<std::mutex>& lock) {
    const int64_t i = job.next++;
    if (job.next == job.pieces) jobs.erase(std::find(jobs.begin(), jobs.end(), &job));
    lock.unlock();
    std::exception_ptr failure;
    inside_piece = true;
    try {
      job.call(i);
    } catch (...) {
      failure = std::current_exception();
    }
    inside_piece = false;
    lock.lock();
    if (failure && (job.failed_piece < 0 || i < job.failed_piece)) {
      job.failed_piece = i;
      job.failure = failure;
    }
    // The job lives on its caller's stack: nothing may touch it after the last piece is counted.
    if (--job.unfinished == 0) done.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return stopping || !jobs.empty(); });
      if (stopping) return;
      take(*jobs.front(), lock);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  SINTER_CHECK(threads >= 1, "a pool of {} threads", threads);
  for (int i = 1; i < threads; ++i)
    state_->threads.emplace_back([s = state_.get()] { s->serve(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadPool::default_threads() {
  if (const char* text = std::getenv("SINTER_THREADS"); text && *text) {
    const std::string_view view(text);
    int threads = 0;
    auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), threads);
    if (error != std::errc() || end != view.data() + view.size() || threads < 1 || threads > 1024)
      throw Error(fmt::format("SINTER_THREADS={} is not a number from 1 to 1024", view));
    return threads;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

ThreadPool& ThreadPool::global() {
  static ThreadPool pool(default_threads());
  return pool;
}

int ThreadPool::size() const {
  return static_cast<int>(state_->threads.size()) + 1;
}

void ThreadPool::run(int64_t begin, int64_t end, int64_t grain, void* object, Piece piece) {
  if (begin >= end) return;
  Job job;
  job.begin = begin;
  job.count = end - begin;
  job.pieces = std::clamp<int64_t>(job.count / std::max<int64_t>(grain, 1), 1, size());
  job.object = object;
  job.piece = piece;
  if (job.pieces == 1 || inside_piece) {
    for (int64_t i = 0; i < job.pieces; ++i) job.call(i);
    return;
  }
  job.unfinished = job.pieces;
  std::unique_lock lock(state_->mutex);
  state_->jobs.push_back(&job);
  state_->work.notify_all();
  while (job.next < job.pieces) state_->take(job, lock);
  state_->done.wait(lock, [&] { return job.unfinished == 0; });
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace sinter
