#pragma once
// A small persistent thread pool with a static split.
//
// parallel_for cuts its range into min(size, count) nearly equal pieces; the cut depends on the
// range and the pool's size alone, so that what a piece computes is the same every time, whichever
// thread runs it. It may be called from several threads at once; called from inside a piece it runs
// the same pieces one after the other on that thread. An exception of a piece reaches the caller
// (that of the lowest piece, once all pieces have ended).

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace sinter {

class ThreadPool {
 public:
  // `threads` counts the caller, so 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The pool that executors share: SINTER_THREADS threads, else one for each hardware thread.
  static ThreadPool& global();
  // What SINTER_THREADS or the hardware asks for; refuses a SINTER_THREADS that is not 1 … 1024.
  static int default_threads();

  int size() const;

  // fn(begin, end) for each piece. No piece is shorter than `grain`, unless the range is.
  template <typename F>
  void parallel_for(int64_t begin, int64_t end, F&& fn, int64_t grain = 1) {
    using Function = std::remove_reference_t<F>;
    run(begin, end, grain, const_cast<void*>(static_cast<const void*>(std::addressof(fn))),
        [](void* object, int64_t first, int64_t last) {
          (*static_cast<Function*>(object))(first, last);
        });
  }

 private:
  using Piece = void (*)(void* object, int64_t begin, int64_t end);
  struct Job;
  struct State;
  void run(int64_t begin, int64_t end, int64_t grain, void* object, Piece piece);

  std::unique_ptr<State> state_;
};

}  // namespace sinter
