// UTF-8 helpers: code point ranges as byte range sequences (the splitting used by lexer generators), encoding, checking.
#include <algorithm>

#include "grammars/native/exprs.hpp"

namespace safegen {
namespace {

using Ranges = std::vector<std::pair<uint8_t, uint8_t>>;

int encode(uint32_t cp, uint8_t* out) {
    if (cp < 0x80) return out[0] = static_cast<uint8_t>(cp), 1;
    if (cp < 0x800) {
        out[0] = static_cast<uint8_t>(0xC0 | (cp >> 6));
        out[1] = static_cast<uint8_t>(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = static_cast<uint8_t>(0xE0 | (cp >> 12));
        out[1] = static_cast<uint8_t>(0x80 | ((cp >> 6) & 0x3F));
        out[2] = static_cast<uint8_t>(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = static_cast<uint8_t>(0xF0 | (cp >> 18));
    out[1] = static_cast<uint8_t>(0x80 | ((cp >> 12) & 0x3F));
    out[2] = static_cast<uint8_t>(0x80 | ((cp >> 6) & 0x3F));
    out[3] = static_cast<uint8_t>(0x80 | (cp & 0x3F));
    return 4;
}

void split(uint32_t low, uint32_t high, std::vector<Ranges>& out) {
    if (low > high) return;
    static constexpr uint32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF};
    for (uint32_t end : kEnds)
        if (low <= end && end < high) {
            split(low, end, out);
            split(end + 1, high, out);
            return;
        }
    if (high < 0x80) {
        out.push_back({{static_cast<uint8_t>(low), static_cast<uint8_t>(high)}});
        return;
    }
    for (int shift = 6; shift <= 18; shift += 6) {
        const uint32_t mask = (1u << shift) - 1;
        if ((low & ~mask) == (high & ~mask)) continue;
        if (low & mask) {
            split(low, low | mask, out);
            split((low | mask) + 1, high, out);
            return;
        }
        if ((high & mask) != mask) {
            split(low, (high & ~mask) - 1, out);
            split(high & ~mask, high, out);
            return;
        }
    }
    uint8_t a[4], b[4];
    const int n = encode(low, a);
    encode(high, b);
    Ranges ranges;
    for (int i = 0; i < n; ++i) ranges.push_back({a[i], b[i]});
    out.push_back(std::move(ranges));
}

}  // namespace

std::vector<Ranges> utf8_sequences(uint32_t low, uint32_t high) {
    std::vector<Ranges> out;
    if (high > 0x10FFFF) high = 0x10FFFF;
    if (low < 0xD800) split(low, std::min(high, 0xD7FFu), out);
    if (high > 0xDFFF) split(std::max(low, 0xE000u), high, out);
    return out;
}

void append_utf8(std::string& out, uint32_t code_point) {
    uint8_t bytes[4];
    const int n = encode(code_point, bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

bool valid_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const auto lead = static_cast<uint8_t>(text[i]);
        const int extra = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2
                          : lead >= 0xF0 && lead < 0xF5 ? 3 : -1;
        if (extra < 0 || i + static_cast<size_t>(extra) >= text.size()) return false;
        uint32_t cp = extra == 0 ? lead : lead & (0x3F >> extra);
        for (int k = 1; k <= extra; ++k) {
            const auto byte = static_cast<uint8_t>(text[i + static_cast<size_t>(k)]);
            if ((byte & 0xC0) != 0x80) return false;
            cp = (cp << 6) | (byte & 0x3F);
        }
        if ((extra == 2 && cp < 0x800) || (extra == 3 && (cp < 0x10000 || cp > 0x10FFFF)) || (cp >= 0xD800 && cp < 0xE000))
            return false;
        i += static_cast<size_t>(extra) + 1;
    }
    return true;
}

}  // namespace safegen
