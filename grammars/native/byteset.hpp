// A set of bytes as 256 bits.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace safegen {

struct ByteSet {
    std::array<uint64_t, 4> words{};

    static ByteSet range(int low, int high) {
        ByteSet set;
        for (int byte = low; byte <= high; ++byte) set.add(static_cast<uint8_t>(byte));
        return set;
    }
    static ByteSet of(uint8_t byte) {
        ByteSet set;
        set.add(byte);
        return set;
    }
    static ByteSet all() { return {{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}}}; }

    void add(uint8_t byte) { words[byte >> 6] |= uint64_t{1} << (byte & 63); }
    void remove(uint8_t byte) { words[byte >> 6] &= ~(uint64_t{1} << (byte & 63)); }
    bool has(uint8_t byte) const { return (words[byte >> 6] >> (byte & 63)) & 1; }
    bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
    int count() const {
        return std::popcount(words[0]) + std::popcount(words[1]) + std::popcount(words[2]) + std::popcount(words[3]);
    }
    bool first(uint8_t& byte) const {  // the lowest one, if any
        for (int i = 0; i < 4; ++i)
            if (words[i]) {
                byte = static_cast<uint8_t>(i * 64 + std::countr_zero(words[i]));
                return true;
            }
        return false;
    }
    bool take_first(uint8_t& byte) {  // removes the lowest one, if any
        if (!first(byte)) return false;
        remove(byte);
        return true;
    }
    bool within(const ByteSet& other) const {
        for (int i = 0; i < 4; ++i)
            if (words[i] & ~other.words[i]) return false;
        return true;
    }
    ByteSet operator|(const ByteSet& other) const {
        ByteSet out;
        for (int i = 0; i < 4; ++i) out.words[i] = words[i] | other.words[i];
        return out;
    }
    ByteSet operator&(const ByteSet& other) const {
        ByteSet out;
        for (int i = 0; i < 4; ++i) out.words[i] = words[i] & other.words[i];
        return out;
    }
    ByteSet without(const ByteSet& other) const {
        ByteSet out;
        for (int i = 0; i < 4; ++i) out.words[i] = words[i] & ~other.words[i];
        return out;
    }
    bool operator==(const ByteSet&) const = default;

    template <class F>
    void each(F&& visit) const {
        for (int i = 0; i < 4; ++i)
            for (uint64_t rest = words[i]; rest; rest &= rest - 1)
                visit(static_cast<uint8_t>(i * 64 + std::countr_zero(rest)));
    }
};

}  // namespace safegen
