#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace hpsim {

/// A value in memory that processes share: one writes it, others read it, nobody waits. Before it
/// is written it is T{}.
template <class T>
class SharedValue {
 public:
  void write(const T& value) {
    Words words;
    std::memcpy(words.data(), &value, sizeof(value));
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_seq_cst);
    for (std::size_t i = 0; i < kWords; ++i)
      words_[i].store(words[i], std::memory_order_seq_cst);
    version_.store(version + 2, std::memory_order_seq_cst);
  }

  /// None if nobody has written it, or it was being written whenever this looked, as by a writer
  /// that died half-way.
  [[nodiscard]] std::optional<T> read() const {
    const Look look = take_a_look();
    return look.is_whole && look.is_written ? std::optional<T>(look.value) : std::nullopt;
  }

  /// The same, or else T{}, or what stands there half-written.
  [[nodiscard]] T last_words() const { return take_a_look().value; }

 private:
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0);
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  struct Look {
    T value;
    bool is_written = false;
    bool is_whole = false;
  };

  [[nodiscard]] Look take_a_look() const {
    constexpr int kTries = 1000;
    Words words;
    Look look;
    for (int i = 0; i < kTries && !look.is_whole; ++i) {
      const std::uint64_t before = version_.load(std::memory_order_seq_cst);
      for (std::size_t k = 0; k < kWords; ++k)
        words[k] = words_[k].load(std::memory_order_seq_cst);
      look.is_written = before > 0;
      look.is_whole = before % 2 == 0 && before == version_.load(std::memory_order_seq_cst);
    }
    if (look.is_written) std::memcpy(static_cast<void*>(&look.value), words.data(), sizeof(T));
    return look;
  }

  std::atomic<std::uint64_t> version_{0};  ///< odd while the words change
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace hpsim
