// How the settings of a draw come from Python, checked.
#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <string>

#include "kernels/cpu/sampling.hpp"

namespace nb = nanobind;

namespace safegen {
namespace {

using std::int64_t;

[[noreturn]] inline void sampling_fault(const std::string& why) { throw nb::value_error(why.c_str()); }

inline nb::tuple fields_of(nb::handle value, std::size_t count, const char* what) {
    if (!nb::isinstance<nb::tuple>(value) || nb::len(value) != count) sampling_fault(what);
    return nb::borrow<nb::tuple>(value);
}

inline cpu::SampleSettings settings_of(nb::handle value) {
    const nb::tuple fields = fields_of(value, 4, "settings: takes a tuple (temperature, top_k, top_p, min_p)");
    const cpu::SampleSettings settings{nb::cast<double>(fields[0]), nb::cast<int64_t>(fields[1]),
                                       nb::cast<double>(fields[2]), nb::cast<double>(fields[3])};
    if (!(settings.temperature >= 0.0) || !std::isfinite(settings.temperature))
        sampling_fault("temperature: must be finite and >= 0");
    if (settings.top_k < 0) sampling_fault("top_k: must be >= 0");
    if (!(settings.top_p > 0.0 && settings.top_p <= 1.0)) sampling_fault("top_p: must lie in (0, 1]");
    if (!(settings.min_p >= 0.0 && settings.min_p <= 1.0)) sampling_fault("min_p: must lie in [0, 1]");
    return settings;
}

}  // namespace
}  // namespace safegen
