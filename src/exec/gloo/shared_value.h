#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace hpsim {

/// A value in memory that processes share: one writes it, others read it, nobody waits.
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

  /// None if it was being written whenever this looked, as by a writer that died half-way.
  [[nodiscard]] std::optional<T> read() const {
    bool is_whole = false;
    const T value = look(is_whole);
    return is_whole ? std::optional<T>(value) : std::nullopt;
  }

  /// The same, or else what stands there half-written.
  [[nodiscard]] T last_words() const {
    bool is_whole = false;
    return look(is_whole);
  }

 private:
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0);
  static constexpr std::size_t kWords = sizeof(T) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  [[nodiscard]] T look(bool& is_whole) const {
    constexpr int kTries = 1000;
    Words words;
    for (int i = 0; i < kTries && !is_whole; ++i) {
      const std::uint64_t before = version_.load(std::memory_order_seq_cst);
      for (std::size_t k = 0; k < kWords; ++k)
        words[k] = words_[k].load(std::memory_order_seq_cst);
      is_whole = before % 2 == 0 && before == version_.load(std::memory_order_seq_cst);
    }
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(value));
    return value;
  }

  std::atomic<std::uint64_t> version_{0};  ///< odd while the words change
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace hpsim
