// Python face of sampling.hpp; safegen.kernels.sampling is the one for everybody else. Arguments are checked before a
// pointer is taken; a mistake is a ValueError that names the argument. The GIL is released around the work.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "kernels/cpu/bind_sampling.hpp"

namespace nb = nanobind;

namespace safegen {
namespace {

using std::int64_t;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Maxima = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int64_t row_below(nb::handle value, std::size_t limit, const char* name) {
    const auto row = nb::cast<int64_t>(value);
    if (row < 0 || row >= static_cast<int64_t>(limit))
        sampling_fault(std::string(name) + ": there is no row " + std::to_string(row));
    return row;
}

cpu::Draw read_draw(nb::handle entry, const Rows& logits, const std::optional<Words>& words,
                    const std::optional<Maxima>& maxima) {
    const nb::tuple fields = fields_of(entry, 4, "draws: takes tuples (settings, row, mask row or None, uniform)");
    cpu::Draw draw{};
    draw.settings = settings_of(fields[0]);
    const int64_t row = row_below(fields[1], logits.shape(0), "row");
    draw.row = logits.data() + row * logits.stride(0);
    if (maxima) draw.maxima = maxima->data() + row * static_cast<int64_t>(maxima->shape(1));
    if (!fields[2].is_none()) {
        if (!words) sampling_fault("words: a draw has a mask row, but there are no masks");
        draw.mask = reinterpret_cast<const std::uint32_t*>(words->data()) +
                    row_below(fields[2], words->shape(0), "mask row") * static_cast<int64_t>(words->shape(1));
    }
    draw.uniform = nb::cast<double>(fields[3]);
    if (!(draw.uniform >= 0.0 && draw.uniform < 1.0)) sampling_fault("uniform: must lie in [0, 1)");
    return draw;
}

nb::tuple sample(const Rows& logits, int64_t vocab_size, const std::optional<Words>& words, const nb::list& draws,
                 const std::optional<Maxima>& maxima) {
    if (vocab_size < 1 || vocab_size > static_cast<int64_t>(logits.shape(1)))
        sampling_fault("vocab_size: " + std::to_string(vocab_size) + " ids, but rows of " + std::to_string(logits.shape(1)));
    if (logits.stride(1) != 1) sampling_fault("logits: the ids of a row must be contiguous");
    if (words && static_cast<int64_t>(words->shape(1)) != (vocab_size + 31) / 32)
        sampling_fault("words: must have " + std::to_string((vocab_size + 31) / 32) + " words a row");
    if (maxima && (maxima->shape(0) != logits.shape(0) || static_cast<int64_t>(maxima->shape(1)) < cpu::blocks_of(vocab_size)))
        sampling_fault("maxima: must have a row for each of the logits, and a maximum for each block of ids");
    std::vector<cpu::Draw> work;
    work.reserve(nb::len(draws));
    for (nb::handle entry : draws) work.push_back(read_draw(entry, logits, words, maxima));
    {
        const nb::gil_scoped_release release;
        cpu::sample(work, vocab_size);
    }
    nb::list ids, faults;
    for (std::size_t place = 0; place < work.size(); ++place) {
        const cpu::Draw& draw = work[place];
        ids.append(draw.id);
        if (draw.fault != cpu::SampleFault::none)
            faults.append(nb::make_tuple(place, static_cast<int>(draw.fault), draw.worst));
    }
    return nb::make_tuple(std::move(ids), std::move(faults));
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("cpu_sample", sample, nb::arg("logits"), nb::arg("vocab_size"), nb::arg("words").none(), nb::arg("draws"),
          nb::arg("maxima") = nb::none());
    m.def("cpu_uniform", cpu::philox_uniform, nb::arg("seed"), nb::arg("index"), nb::arg("position"),
          nb::arg("attempt"));
}

}  // namespace safegen
