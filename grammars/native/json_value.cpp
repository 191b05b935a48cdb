#include "grammars/native/json_value.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "grammars/native/decimal.hpp"
#include "grammars/native/exprs.hpp"

namespace safegen {
namespace {

// Depth is bounded by the grammar's nesting limit, so recursion is.
class Canonicalizer {
public:
    explicit Canonicalizer(std::string_view text) : text_(text) {}
    std::string value() {
        blanks();
        switch (text_[at_]) {
            case '{': return object();
            case '[': return array();
            case '"': return string();
            case 't':
            case 'n': return word(4);
            case 'f': return word(5);
            default: return number();
        }
    }

    std::vector<std::string> items() {
        std::vector<std::string> out;
        blanks();
        if (text_[at_] != '[') return out;
        ++at_;
        for (blanks(); text_[at_] != ']'; blanks()) {
            out.push_back(value());
            blanks();
            if (text_[at_] == ',') ++at_;
        }
        return out;
    }

private:
    void blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
    }
    std::string word(size_t length) {
        at_ += length;
        return std::string(text_.substr(at_ - length, length));
    }
    std::string_view literal() {
        const size_t begin = at_++;
        while (text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
        return text_.substr(begin, ++at_ - begin);
    }
    static std::string tagged(char tag, const std::string& body) { return tag + std::to_string(body.size()) + ':' + body; }
    std::string string() { return tagged('s', decode_json_string(literal())); }
    std::string number() {
        const size_t begin = at_;
        while (at_ < text_.size() && (std::string_view("+-.eE0123456789").find(text_[at_]) != std::string_view::npos)) ++at_;
        const Decimal d = Decimal::parse(std::string(text_.substr(begin, at_ - begin)));
        if (d.zero()) return "#0";
        return (d.negative ? "#-" : "#") + d.digits + 'e' + std::to_string(d.point);
    }
    std::string array() {
        std::string out = "[";
        ++at_;
        for (blanks(); text_[at_] != ']'; blanks()) {
            out += value() + ',';
            blanks();
            if (text_[at_] == ',') ++at_;
        }
        ++at_;
        return out + ']';
    }
    std::string object() {
        std::vector<std::pair<std::string, std::string>> members;
        ++at_;
        for (blanks(); text_[at_] != '}'; blanks()) {
            std::string name = string();
            blanks();
            ++at_;  // the colon
            std::string member = value();
            members.emplace_back(std::move(name), std::move(member));
            blanks();
            if (text_[at_] == ',') {
                ++at_;
                blanks();
            }
        }
        ++at_;
        std::sort(members.begin(), members.end());
        std::string out = "{";
        for (const auto& [name, member] : members) out += name + '=' + member + ',';
        return out + '}';
    }

    std::string_view text_;
    size_t at_ = 0;
};

}  // namespace

std::vector<std::string> array_items(std::string_view text) { return Canonicalizer(text).items(); }

std::string canonical_json(std::string_view text) { return Canonicalizer(text).value(); }

std::string decode_json_string(std::string_view literal) {
    std::string out;
    auto hex = [&](size_t at) {
        uint32_t value = 0;
        for (size_t i = at; i < at + 4; ++i) {
            const char c = literal[i];
            value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        }
        return value;
    };
    for (size_t i = 1; i + 1 < literal.size(); ++i) {
        if (literal[i] != '\\') {
            out += literal[i];
            continue;
        }
        switch (const char c = literal[++i]) {
            case 'b': out += '\b'; break;
            case 'f': out += '\f'; break;
            case 'n': out += '\n'; break;
            case 'r': out += '\r'; break;
            case 't': out += '\t'; break;
            case 'u': {
                uint32_t unit = hex(i + 1);
                i += 4;
                if (unit >= 0xD800 && unit < 0xDC00) {
                    unit = 0x10000 + ((unit - 0xD800) << 10) + (hex(i + 3) - 0xDC00);
                    i += 6;
                }
                append_utf8(out, unit);
                break;
            }
            default: out += c;
        }
    }
    return out;
}

}  // namespace safegen
