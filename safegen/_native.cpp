// The one extension module: the constraint matcher (grammars/native) and the CPU kernels (kernels/cpu).
// Each part binds itself; nothing here links against torch, tensors cross as ndarrays.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace safegen {
void bind_grammars(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_sampling(nb::module_& m);
}  // namespace safegen

NB_MODULE(_native, m) {
    m.doc() = "safegen native core: constraint matcher and CPU kernels";
    safegen::bind_grammars(m);
    safegen::bind_kernels(m);
    safegen::bind_sampling(m);
}
