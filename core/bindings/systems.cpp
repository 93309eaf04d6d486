// The Python face of core/systems: the table of loads, the reader of model files, a network to run outside of a worker.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "cpu/clock.hpp"
#include "systems/kernel.hpp"

namespace teal {
namespace {

using systems::Load;
using systems::Mapping;
using systems::ModelFile;
using systems::Network;
using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ArrayIn = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

nb::str name_of(Dtype dtype) { return nb::str(dtype_info(dtype).name.data(), dtype_info(dtype).name.size()); }

nb::list load_table() {
    nb::list table;
    for (const Load& load : systems::loads()) {
        nb::list tensors;
        for (const systems::TensorShape& tensor : load.tensors)
            tensors.append(nb::make_tuple(nb::str(tensor.name.data(), tensor.name.size()),
                                          tensor.columns == 0 ? nb::make_tuple(tensor.rows) : nb::make_tuple(tensor.rows, tensor.columns)));
        table.append(nb::make_tuple(nb::str(load.name.data(), load.name.size()), name_of(load.weights), tensors, name_of(load.input), load.columns, load.classes));
    }
    return table;
}

ModelFile checked_file(const Mapping& mapping) {
    ModelFile file;
    std::string error;
    if (!systems::read_model(mapping.bytes(), file, error)) throw Error(Code::invalid_argument, error);
    return file;
}

nb::tuple read_file(int fd) {
    const Mapping mapping(fd);
    const ModelFile file = checked_file(mapping);
    return nb::make_tuple(nb::str(file.load->name.data(), file.load->name.size()), file.data);
}

Isa isa_from(const std::string& name) {
    for (const Isa rung : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa_name(rung) == name) {
            if (rung > widest_isa(cpu_features())) throw Error(Code::not_found, "isa: this machine does not run '" + name + "'");
            return rung;
        }
    if (name.empty()) return isa();
    throw Error(Code::invalid_argument, "isa: '" + name + "', expected " + std::string(isa_name(Isa::baseline)) + ", avx2 or avx512");
}

// A network over arrays of this process: for tests, benches and profiles of the CPU path.
class Standalone {
public:
    Standalone(int fd, const std::string& isa_wanted) : mapping_(fd), file_(checked_file(mapping_)), network_(make_network(file_, isa_from(isa_wanted))) {}

    void run(const ArrayIn& x, const Array& scores, const Array& verdict) {
        const std::uint64_t batch = checked_batch(x, scores, verdict);
        const nb::gil_scoped_release release;
        network_->run(static_cast<const std::byte*>(x.data()), static_cast<std::byte*>(scores.data()), static_cast<std::int32_t*>(verdict.data()), batch);
    }

    std::vector<double> measure(const ArrayIn& x, const Array& scores, const Array& verdict, std::uint32_t n) {
        const std::uint64_t batch = checked_batch(x, scores, verdict);
        std::vector<double> result(n);
        const nb::gil_scoped_release release;
        for (double& time : result) {
            const std::uint64_t start = ticks();
            network_->run(static_cast<const std::byte*>(x.data()), static_cast<std::byte*>(scores.data()), static_cast<std::int32_t*>(verdict.data()), batch);
            time = ticks_to_ns(ticks() - start);
        }
        return result;
    }

private:
    static void check(const char* name, bool good) {
        if (!good) throw Error(Code::invalid_argument, std::string(name) + ": not a contiguous array of the load's dtype and shape");
    }

    template <typename A>
    static bool is(const A& array, Dtype dtype, std::size_t batch, std::size_t columns) {
        const nb::dlpack::dtype given = array.dtype();
        return given.code == static_cast<std::uint8_t>(dtype_info(dtype).dlpack_code) && given.bits == 8 * dtype_info(dtype).size && given.lanes == 1 &&
               array.ndim() == (columns == 0 ? 1 : 2) && array.shape(0) == batch && (columns == 0 || array.shape(1) == columns);
    }

    std::uint64_t checked_batch(const ArrayIn& x, const Array& scores, const Array& verdict) const {
        const std::size_t batch = x.ndim() > 0 ? x.shape(0) : 0;
        check("x", is(x, file_.load->input, batch, file_.load->columns));
        check("scores", is(scores, file_.load->weights, batch, file_.load->classes));
        check("verdict", is(verdict, Dtype::i32, batch, 0));
        return batch;
    }

    Mapping mapping_;
    ModelFile file_;
    std::unique_ptr<Network> network_;
};

}  // namespace

void bind_systems(nb::module_& m) {
    m.def("systems_loads", &load_table,
          nb::sig("def systems_loads() -> list[tuple[str, str, list[tuple[str, tuple[int, ...]]], str, int, int]]"),
          "The loads: name, dtype of the weights, (name, shape) of each tensor by place, dtype and columns of x, classes.");
    m.def("systems_file", &read_file, nb::arg("fd"), nb::sig("def systems_file(fd: int) -> tuple[str, int]"),
          "(load, where the weights begin) of a sealed model file. Raises InvalidArgument.");
    nb::class_<Standalone>(m, "SystemsNetwork", "A network of a sealed model file, run in this process; isa: v2, avx2, avx512 or '' for the widest.")
        .def(nb::init<int, const std::string&>(), nb::arg("fd"), nb::arg("isa") = "")
        .def("run", &Standalone::run, nb::arg("x"), nb::arg("scores"), nb::arg("verdict"),
             nb::sig("def run(self, x: NDArray[typing.Any], scores: NDArray[typing.Any], verdict: NDArray[typing.Any]) -> None"))
        .def("measure", &Standalone::measure, nb::arg("x"), nb::arg("scores"), nb::arg("verdict"), nb::arg("n"),
             nb::sig("def measure(self, x: NDArray[typing.Any], scores: NDArray[typing.Any], verdict: NDArray[typing.Any], n: int) -> list[float]"),
             "Nanoseconds of each of n runs.");
}

}  // namespace teal
