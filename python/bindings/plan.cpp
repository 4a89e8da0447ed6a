// SPDX-License-Identifier: Apache-2.0
#include "onchip/plan.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "onchip/io_model.hpp"
#include "plan.hpp"

namespace onchip::python {
namespace {

const char* type_name(DeviceType type) { return type == DeviceType::cpu ? "cpu" : "cuda"; }

void bind_cost(nb::module_& m) {
  nb::class_<Cost>(m, "Cost", "Predicted cost: FLOP, bytes of device memory, seconds.")
      .def_ro("flops", &Cost::flops, "FLOP of the matrix products, visible scores only.")
      .def_ro("bytes_read", &Cost::bytes_read)
      .def_ro("bytes_written", &Cost::bytes_written)
      .def_ro("intensity", &Cost::intensity, "FLOP per byte.")
      .def_ro("seconds", &Cost::seconds, "On the roofline.")
      .def_ro("compute_bound", &Cost::compute_bound)
      .def_ro("peak_bytes", &Cost::peak_bytes, "Memory beyond the inputs.");
}

void bind_device_info(nb::module_& m) {
  nb::class_<DeviceInfo>(m, "DeviceInfo", "The facts of a device that planning needs.")
      .def_ro("name", &DeviceInfo::name)
      .def_prop_ro("type", [](const DeviceInfo& d) { return type_name(d.type); })
      .def_ro("index", &DeviceInfo::index, "-1: a device known by name, none of this machine.")
      .def_ro("compute_capability", &DeviceInfo::compute_capability, "90 for sm_90; 0 for a CPU.")
      .def_ro("family", &DeviceInfo::family,
              "Newest family of GPU kernels to plan with: 80 or 90; 0 for a CPU.")
      .def_ro("units", &DeviceInfo::units, "Streaming multiprocessors, or threads of a CPU.")
      .def_ro("on_chip_bytes", &DeviceInfo::on_chip_bytes)
      .def_ro("l2_bytes", &DeviceInfo::l2_bytes)
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes)
      .def_ro("bandwidth", &DeviceInfo::bandwidth, "Bytes per second.")
      .def_ro("flops_16bit", &DeviceInfo::flops_16bit, "FLOP per second.")
      .def_ro("flops_float32", &DeviceInfo::flops_float32, "FLOP per second.")
      .def_ro("flops_float64", &DeviceInfo::flops_float64, "FLOP per second.");
}

void bind_io_model(nb::module_& m) {
  nb::class_<IoBytes>(m, "IoBytes", "Bytes read from and written to device memory.")
      .def_ro("read", &IoBytes::read)
      .def_ro("written", &IoBytes::written)
      .def_prop_ro("total", &IoBytes::total);
  nb::class_<IoModel>(m, "IoModel", "Bytes that attention moves; see onchip.io_model.")
      .def_ro("q_bytes", &IoModel::q_bytes)
      .def_ro("k_bytes", &IoModel::k_bytes)
      .def_ro("v_bytes", &IoModel::v_bytes)
      .def_ro("out_bytes", &IoModel::out_bytes)
      .def_ro("lse_bytes", &IoModel::lse_bytes)
      .def_ro("scores_bytes", &IoModel::scores_bytes, "The matrix S; P, dP and dS are as large.")
      .def_ro("tile_bytes", &IoModel::tile_bytes, "One tile of scores.")
      .def_ro("visible_scores", &IoModel::visible_scores)
      .def_ro("tiles", &IoModel::tiles)
      .def_ro("tiles_visited", &IoModel::tiles_visited)
      .def_ro("forward_flops", &IoModel::forward_flops)
      .def_ro("backward_flops", &IoModel::backward_flops)
      .def_ro("standard_forward", &IoModel::standard_forward)
      .def_ro("tiled_forward", &IoModel::tiled_forward)
      .def_ro("standard_backward", &IoModel::standard_backward)
      .def_ro("tiled_backward", &IoModel::tiled_backward);
  m.def("io_model", &io_model, nb::arg("batch"), nb::arg("heads_q"), nb::arg("heads_kv"),
        nb::arg("seqlen_q"), nb::arg("seqlen_k"), nb::arg("dim"), nb::arg("dim_v"),
        nb::arg("element_bytes"), nb::arg("tile_q"), nb::arg("tile_k"), nb::arg("causal"));
}

/// A read-only property for one member of PlanInfo.
template <auto kMember>
auto info() {
  return [](const Plan& plan) { return plan.info().*kMember; };
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_cost(m);
  bind_device_info(m);
  bind_io_model(m);
  nb::class_<Plan>(m, "Plan", "How a problem is going to be computed, and its predicted cost.")
      .def_prop_ro("backward", [](const Plan& p) { return p.info().pass == Pass::backward; })
      .def_prop_ro("device", info<&PlanInfo::device>())
      .def_prop_ro("backend", info<&PlanInfo::backend>(), "\"cpu\", \"sm80\" or \"sm90\".")
      .def_prop_ro("kernel", info<&PlanInfo::kernel>())
      .def_prop_ro("tile_q", info<&PlanInfo::tile_q>(), "Br: query rows of a tile.")
      .def_prop_ro("tile_k", info<&PlanInfo::tile_k>(), "Bc: keys of a tile.")
      .def_prop_ro("stages", info<&PlanInfo::stages>())
      .def_prop_ro("warps", info<&PlanInfo::warps>())
      .def_prop_ro("on_chip_bytes", info<&PlanInfo::on_chip_bytes>())
      .def_prop_ro("grid", info<&PlanInfo::grid>())
      .def_prop_ro("num_splits", info<&PlanInfo::num_splits>())
      .def_prop_ro("split_size", info<&PlanInfo::split_size>())
      .def_prop_ro("threads", info<&PlanInfo::threads>())
      .def_prop_ro("workspace_bytes", info<&PlanInfo::workspace_bytes>())
      .def_prop_ro("cost", info<&PlanInfo::cost>(), "Of this plan.")
      .def_prop_ro("standard", info<&PlanInfo::standard>(),
                   "Of the standard algorithm, which materialises S and P.")
      .def("explain", &Plan::explain, "The plan in words, with a picture of the tiles of one head.")
      .def("json", &Plan::json, "The plan as one JSON object.")
      .def(
          "as_dict",
          [](const Plan& plan) { return nb::module_::import_("json").attr("loads")(plan.json()); },
          "The plan as a dict, with the fields of json().")
      .def("__repr__", [](const Plan& plan) {
        const PlanInfo& p = plan.info();
        return "<onchip.Plan " + p.kernel + " for " + p.device.name + ": tile " +
               std::to_string(p.tile_q) + " x " + std::to_string(p.tile_k) + ", workspace " +
               std::to_string(p.workspace_bytes) + " bytes>";
      });
  m.def(
      "device_info", [](const std::string& name) { return device_info(name); }, nb::arg("name"),
      "Facts of a device: \"cpu\" (this machine) or one of the known names.");
  m.def("known_devices", &known_devices);
}

}  // namespace onchip::python
