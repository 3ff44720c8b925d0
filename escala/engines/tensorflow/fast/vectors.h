// Vectors of the processor, and the choice of an operation's vectors.
//
// The body of an operation is a template over the type of its vectors. It is compiled once for each
// set of instructions, and the set is chosen when the operation is created.

#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

#define INLINE inline __attribute__((always_inline))
// Define the versions of a function, one for each set of instructions, and the array `NAMEVersions`
// of these versions. The body may depend on `kLanes`, the number of floats in a vector.
#define VERSION(target, name, lanes, parameters, ...)  \
  target void name parameters {                        \
    [[maybe_unused]] constexpr int kLanes = lanes;     \
    __VA_ARGS__;                                       \
  }
#define VERSIONS(name, parameters, ...)                                                           \
  VERSION(__attribute__((target("avx512f,avx2,fma"))), name##Avx512, 16, parameters, __VA_ARGS__) \
  VERSION(__attribute__((target("avx2,fma"))), name##Avx2, 8, parameters, __VA_ARGS__)            \
  VERSION(, name##Baseline, 4, parameters, __VA_ARGS__)                                           \
  constexpr Version<decltype(&name##Baseline)> name##Versions[] = {                               \
      {"avx512f", 16, name##Avx512}, {"avx2", 8, name##Avx2}, {"baseline", 4, name##Baseline}};
// Register an operation and its kernel on the processor. The declaration of the operation follows.
#define OPERATION(name, ...)                                                       \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), __VA_ARGS__); \
  REGISTER_OP(name)

namespace {

using tensorflow::DT_FLOAT;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// A vector of floats that can be loaded from, and stored to, any address of a float.
template <int kLanes>
struct Floats {
  typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
};
template <int kLanes> using Vector = typename Floats<kLanes>::Vector;

template <int kLanes>
INLINE Vector<kLanes> Load(const float* from) {
  return *reinterpret_cast<const Vector<kLanes>*>(from);
}

template <int kLanes>
INLINE void Store(Vector<kLanes> vector, float* to) {
  *reinterpret_cast<Vector<kLanes>*>(to) = vector;
}

// The version of a function for a set of instructions, and the lanes of its vectors.
template <typename Function>
struct Version {
  const char* instructions;
  int lanes;
  Function function;
};

// Return whether the processor has the instructions for vectors with this number of lanes.
inline bool Available(int lanes) {
  if (lanes == 16) return __builtin_cpu_supports("avx512f");
  return lanes < 8 || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
}

// An operation with a version of a function. Its attribute `instructions` names the version; "auto"
// takes the first version that the processor has. Versions with more than `kWidest` lanes are left
// out.
template <const auto& kVersions, int kWidest = 16>
class Versioned : public OpKernel {
 public:
  explicit Versioned(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("instructions", &name));
    for (const auto& version : kVersions) {
      if (version.lanes > kWidest || (name != "auto" && name != version.instructions)) continue;
      version_ = &version;
      if (Available(version.lanes)) return;
      OP_REQUIRES(context, name == "auto", errors::Unimplemented("this processor has no ", name));
    }
    context->CtxFailure(errors::InvalidArgument("unknown instructions: ", name));
  }

 protected:
  decltype(&*kVersions) version_;
};

// The declaration of the attribute `instructions`.
constexpr char kInstructions[] = "instructions: {'auto', 'avx512f', 'avx2', 'baseline'} = 'auto'";

inline int64_t RoundedUp(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

// Divide some work among all threads of an operation's pool.
inline void Divide(OpKernelContext* context, int64_t parts, int64_t cycles_of_part,
                   std::function<void(int64_t, int64_t)> work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, parts, cycles_of_part, std::move(work));
}

}  // namespace
