#include <sinter/runtime/thread_pool.h>

#include <doctest/doctest.h>
#include <sinter/ir/diagnostic.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace sinter;

namespace {

using Pieces = std::vector<std::pair<int64_t, int64_t>>;

Pieces pieces_of(ThreadPool& pool, int64_t begin, int64_t end, int64_t grain = 1) {
  Pieces pieces;
  std::mutex mutex;
  pool.parallel_for(
      begin, end,
      [&](int64_t first, int64_t last) {
        std::lock_guard lock(mutex);
        pieces.emplace_back(first, last);
      },
      grain);
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

}  // namespace

TEST_CASE("parallel_for: the split is static and covers the range once") {
  ThreadPool pool(3);
  CHECK(pool.size() == 3);
  CHECK(pieces_of(pool, 5, 5).empty());
  CHECK(pieces_of(pool, 5, 6) == Pieces{{5, 6}});
  CHECK(pieces_of(pool, 0, 10) == Pieces{{0, 4}, {4, 7}, {7, 10}});
  CHECK(pieces_of(pool, 0, 10, 5) == Pieces{{0, 5}, {5, 10}});
  CHECK(pieces_of(pool, 0, 10, 100) == Pieces{{0, 10}});
  const int64_t big = int64_t{1} << 62;
  const Pieces huge = pieces_of(pool, 0, big);
  CHECK(huge.size() == 3);
  CHECK(huge[1].first == huge[0].second);
  CHECK(huge[2] == std::pair{huge[1].second, big});
  ThreadPool one(1);
  CHECK(pieces_of(one, 0, 10) == Pieces{{0, 10}});
}

TEST_CASE("parallel_for: pieces run at the same time") {
  ThreadPool pool(3);
  std::atomic<int> arrived = 0;
  // Each piece waits for the others: a pool that ran them in turn would never finish.
  pool.parallel_for(0, 3, [&](int64_t, int64_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  CHECK(arrived == 3);
}

TEST_CASE("parallel_for: called from several threads at once") {
  ThreadPool pool(4);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 6; ++t)
    callers.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        std::vector<int64_t> values(static_cast<size_t>(37 + t), 0);
        pool.parallel_for(0, static_cast<int64_t>(values.size()), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
        });
        const auto n = static_cast<int64_t>(values.size());
        if (std::accumulate(values.begin(), values.end(), int64_t{0}) != n * (n - 1) / 2) ++wrong;
      }
    });
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("parallel_for: nested calls run in place") {
  ThreadPool pool(2);
  std::atomic<int64_t> total = 0;
  pool.parallel_for(0, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pool.parallel_for(0, 10, [&](int64_t first, int64_t last) { total += last - first; });
  });
  CHECK(total == 80);
}

TEST_CASE("parallel_for: the lowest piece's exception reaches the caller") {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ended = 0;
    std::string message;
    try {
      pool.parallel_for(0, 3, [&](int64_t begin, int64_t) {
        ++ended;
        if (begin > 0) throw std::runtime_error(std::to_string(begin));
      });
    } catch (const std::runtime_error& e) {
      message = e.what();
    }
    CHECK(message == "1");
    CHECK(ended == 3);
  }
  CHECK(pieces_of(pool, 0, 3).size() == 3);  // still serves
}

TEST_CASE("SINTER_THREADS") {
  const char* before = std::getenv("SINTER_THREADS");
  const std::string saved = before ? before : "";
  setenv("SINTER_THREADS", "5", 1);
  CHECK(ThreadPool::default_threads() == 5);
  for (const char* bad : {"0", "-1", "x", "2x", "99999"}) {
    setenv("SINTER_THREADS", bad, 1);
    CHECK_THROWS_AS(ThreadPool::default_threads(), Error);
  }
  unsetenv("SINTER_THREADS");
  CHECK(ThreadPool::default_threads() >= 1);
  if (before) setenv("SINTER_THREADS", saved.c_str(), 1);
}
