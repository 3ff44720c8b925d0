// Vectors of the processor, and the choice of those that an operation uses.
//
// The body of an operation is a template over the type of its vectors. It is compiled once for each
// set of instructions, and the set is chosen when the operation is created.

#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

#define INLINE inline __attribute__((always_inline))
// Define a function in the version of each set of instructions, see `Version`. Its body
// may depend on `kLanes`, the floats of a vector of these instructions.
#define VERSION(target, name, lanes, parameters, ...)  \
  target void name parameters {                        \
    [[maybe_unused]] constexpr int kLanes = lanes;     \
    __VA_ARGS__;                                       \
  }
#define VERSIONS(name, parameters, ...)                                                           \
  VERSION(__attribute__((target("avx512f,avx2,fma"))), name##Avx512, 16, parameters, __VA_ARGS__) \
  VERSION(__attribute__((target("avx2,fma"))), name##Avx2, 8, parameters, __VA_ARGS__)            \
  VERSION(, name##Baseline, 4, parameters, __VA_ARGS__)

namespace {

using tensorflow::DT_FLOAT;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
namespace errors = tensorflow::errors;

// A vector of floats that is loaded from and stored to any address of a float.
template <int kLanes>
struct Floats {
  typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
};
template <int kLanes>
using Vector = typename Floats<kLanes>::Vector;

template <int kLanes>
INLINE Vector<kLanes> Load(const float* from) {
  return *reinterpret_cast<const Vector<kLanes>*>(from);
}

template <int kLanes>
INLINE void Store(Vector<kLanes> vector, float* to) {
  *reinterpret_cast<Vector<kLanes>*>(to) = vector;
}

// A function in the version of a set of instructions.
template <typename Function>
struct Version {
  const char* instructions;
  Function function;
};

inline bool Available(const std::string& instructions) {
  if (instructions == "avx512f") return __builtin_cpu_supports("avx512f");
  if (instructions == "avx2")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return instructions == "baseline";
}

// Choose the version that an operation's attribute `instructions` names. For "auto" it is the first
// one that the processor has.
template <typename Function>
Status Choose(OpKernelConstruction* context, const std::vector<Version<Function>>& versions,
              Function* chosen) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("instructions", &name));
  for (const auto& version : versions) {
    if (name != "auto" && name != version.instructions) continue;
    if (Available(version.instructions)) {
      *chosen = version.function;
      return tensorflow::OkStatus();
    }
    if (name != "auto") return errors::Unimplemented("this processor has no ", name);
  }
  return errors::InvalidArgument("unknown instructions: ", name);
}

// The declaration of the attribute that `Choose` reads.
constexpr char kInstructions[] = "instructions: {'auto', 'avx512f', 'avx2', 'baseline'} = 'auto'";

inline int64_t RoundedUp(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

// Let the threads of an operation's pool, as many as there are, do parts of some work.
inline void Divide(OpKernelContext* context, int64_t parts, int64_t cycles_of_part,
                   std::function<void(int64_t, int64_t)> work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, parts, cycles_of_part, std::move(work));
}

}  // namespace
