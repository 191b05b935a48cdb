#include <nanobind/nanobind.h>
namespace nb = nanobind;
namespace safegen {
void bind_grammars(nb::module_& m) { m.attr("grammars_ready") = true; }
}
