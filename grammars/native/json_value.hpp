// Equality of JSON values from their texts: one canonical form per value.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace safegen {

// text: one complete, legal JSON value, blanks around it allowed. Numbers become exact decimals, strings their decoded
// text, members are sorted by name; two values are equal exactly when their canonical forms are.
std::string canonical_json(std::string_view text);

// Canonical forms of the items of an array; empty for any other value.
std::vector<std::string> array_items(std::string_view text);

// Decodes a complete, legal JSON string literal, quotes included.
std::string decode_json_string(std::string_view literal);

}  // namespace safegen
