// Update a dense layer's kernel by the factors of its gradient, in one pass over memory.
//
// The layer computes X · W, with X of shape (rows, m) and the kernel W of shape (m, n). D, of shape
// (rows, n), is the gradient of this product, and the gradient of W is Xᵀ · D.
//
// The gradient is computed tile by tile: some rows of W's shape by some columns, summed in registers
// over all terms. Each tile is applied as soon as it is complete, while it is in cache.
//
// Every element is summed in the order of its terms, by one chain of multiplications and additions.
// So its value depends neither on the number of threads nor on the width of the vectors, as long as
// the processor has fused multiply-add.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

#define INLINE inline __attribute__((always_inline))

namespace {

using tensorflow::DT_FLOAT;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Vectors that are loaded from and stored to any address of a float.
typedef float Float4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Float16 __attribute__((vector_size(64), aligned(4), may_alias));

// Compute a tile: sums[r][c] = Σ_t left[r + t · term] · right[t · columns + c].
//
// The tile has kRows rows and kVectors vectors of columns. `terms` is the number of terms of each
// sum. `ahead` is the distance in floats at which `left` is fetched into cache.
template <typename Vector, int kVectors, int kRows>
INLINE void Product(const float* left, int64_t term, const float* right, int64_t terms,
                    int64_t ahead, float* sums) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  Vector total[kRows][kVectors] = {};
  for (int64_t t = 0; t < terms; ++t) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = *reinterpret_cast<const Vector*>(right + v * kLanes);
    }
    __builtin_prefetch(left + ahead);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) total[r][v] += left[r] * columns[v];
    }
    left += term;
    right += kVectors * kLanes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Vector*>(sums + (r * kVectors + v) * kLanes) = total[r][v];
    }
  }
}

struct RMSprop {
  float learning_rate, rho, epsilon;
};

// Update `count` weights and their mean squares by their gradients, as Keras's RMSprop.
INLINE void Apply(const RMSprop& scalars, int64_t count, const float* __restrict gradient,
                  float* __restrict weights, float* __restrict squares) {
  const float rate = scalars.learning_rate, rho = scalars.rho, epsilon = scalars.epsilon;
  const float fresh = 1.0f - rho;
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) {
    const float g = gradient[c];
    const float square = rho * squares[c] + fresh * (g * g);
    squares[c] = square;
    weights[c] -= rate * g / __builtin_sqrtf(square + epsilon);
  }
}

struct Update {
  const float *inputs, *panels;  // X, and D in panels of columns: (panels, rows, columns).
  int64_t rows, m, n;
  RMSprop scalars;
  float *kernel, *squares;
};

constexpr int kUpdateRows = 6;

// Update the rows of the kernel that the tiles from `start` to `end` cover.
template <typename Vector, int kVectors>
INLINE void UpdateTiles(const Update& all, int64_t start, int64_t end) {
  constexpr int kColumns = kVectors * sizeof(Vector) / sizeof(float);
  alignas(64) float gradient[kUpdateRows * kColumns];
  std::vector<float> last;
  for (int64_t tile = start; tile < end; ++tile) {
    const int64_t first = tile * kUpdateRows;
    const int64_t height = std::min<int64_t>(kUpdateRows, all.m - first);
    const float* left = all.inputs + first;
    int64_t term = all.m, ahead = 32;
    if (height < kUpdateRows) {
      // A whole tile would read beyond X: its missing columns are zeros.
      last.assign(all.rows * kUpdateRows, 0.0f);
      for (int64_t b = 0; b < all.rows; ++b) {
        std::copy_n(left + b * all.m, height, last.data() + b * kUpdateRows);
      }
      left = last.data(), term = kUpdateRows, ahead = 0;
    }
    for (int64_t column = 0; column < all.n; column += kColumns) {
      const int64_t width = std::min<int64_t>(kColumns, all.n - column);
      float* kernel = all.kernel + first * all.n + column;
      float* squares = all.squares + first * all.n + column;
      for (int64_t r = 0; r < height; ++r) {
        for (int64_t c = 0; c < width; c += 16) {
          __builtin_prefetch(kernel + r * all.n + c, 1);
          __builtin_prefetch(squares + r * all.n + c, 1);
        }
      }
      Product<Vector, kVectors, kUpdateRows>(left, term, all.panels + column * all.rows, all.rows,
                                             ahead, gradient);
      for (int64_t r = 0; r < height; ++r) {
        const float* from = gradient + r * kColumns;
        if (width == kColumns) {
          Apply(all.scalars, kColumns, from, kernel + r * all.n, squares + r * all.n);
        } else {
          Apply(all.scalars, width, from, kernel + r * all.n, squares + r * all.n);
        }
      }
    }
  }
}

__attribute__((target("avx512f,avx2,fma"))) void UpdateAvx512(const Update& all, int64_t start,
                                                              int64_t end) {
  UpdateTiles<Float16, 4>(all, start, end);
}

__attribute__((target("avx2,fma"))) void UpdateAvx2(const Update& all, int64_t start,
                                                    int64_t end) {
  UpdateTiles<Float8, 2>(all, start, end);
}

void UpdateBaseline(const Update& all, int64_t start, int64_t end) {
  UpdateTiles<Float4, 2>(all, start, end);
}

// What a processor offers: the code of the update, and the columns of its tiles.
struct Instructions {
  const char* name;
  bool available;
  int columns;
  void (*update)(const Update&, int64_t, int64_t);
};

const std::vector<Instructions>& Known() {
  static const auto* known = new std::vector<Instructions>{
      {"avx512f", static_cast<bool>(__builtin_cpu_supports("avx512f")), 64, UpdateAvx512},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), 16, UpdateAvx2},
      {"baseline", true, 8, UpdateBaseline},
  };
  return *known;
}

// Return the named instructions, or the first ones that the processor has for "auto".
Status Choose(const std::string& name, const Instructions** chosen) {
  for (const Instructions& each : Known()) {
    if (name != "auto" && name != each.name) continue;
    if (each.available) {
      *chosen = &each;
      return tensorflow::OkStatus();
    }
    if (name == each.name) return errors::Unimplemented("this processor has no ", name);
  }
  return errors::InvalidArgument("unknown instructions: ", name);
}

// Lay the columns of a matrix (rows, n) out as panels (panels, rows, columns), padded with zeros.
void Pack(const float* from, int64_t rows, int64_t n, int64_t columns, float* panels) {
  for (int64_t column = 0; column < n; column += columns) {
    const int64_t width = std::min(columns, n - column);
    for (int64_t row = 0; row < rows; ++row) {
      panels = std::copy_n(from + row * n + column, width, panels);
      panels = std::fill_n(panels, columns - width, 0.0f);
    }
  }
}

int64_t RoundedUp(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

// Let the threads of an operation's pool, as many as there are, do parts of some tiles.
void Divide(OpKernelContext* context, int64_t tiles, int64_t cycles_of_tile,
            std::function<void(int64_t, int64_t)> work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, tiles, cycles_of_tile, std::move(work));
}

// Make the tensor of a variable, whose mutex is held, one that may be written in place.
//
// A value that was read from the variable, and is still in use, shares its memory.
Status Own(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (tensor->RefCountIsOne()) return tensorflow::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  const auto from = tensor->flat<float>();
  std::copy_n(from.data(), from.size(), copy.flat<float>().data());
  *tensor = copy;
  return tensorflow::OkStatus();
}

class ProductRMSprop : public OpKernel {
 public:
  explicit ProductRMSprop(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("instructions", &name));
    OP_REQUIRES_OK(context, Choose(name, &instructions_));
    OP_REQUIRES_OK(context, context->GetAttr("rho", &rho_));
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> kernel, squares;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &kernel));
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 1), &squares));
    OP_REQUIRES(context, kernel.get() != squares.get(),
                errors::InvalidArgument("kernel and mean squares are one variable"));
    const Tensor& inputs = context->input(2);
    const Tensor& gradients = context->input(3);
    const Tensor& rate = context->input(4);
    // Other operations lock several variables in the order of these addresses too.
    Var *one = kernel.get(), *other = squares.get();
    if (other->mu() < one->mu()) std::swap(one, other);
    tensorflow::mutex_lock first(*one->mu());
    tensorflow::mutex_lock second(*other->mu());
    for (Var* each : {kernel.get(), squares.get()}) {
      OP_REQUIRES(context, each->is_initialized,
                  errors::FailedPrecondition("a variable has no value yet"));
      OP_REQUIRES(context, each->tensor()->dtype() == DT_FLOAT,
                  errors::InvalidArgument("a variable is not float32"));
    }
    const auto shape = kernel->tensor()->shape();
    OP_REQUIRES(context, shape.dims() == 2 && shape == squares->tensor()->shape(),
                errors::InvalidArgument("kernel and mean squares are no matrices of one shape: ",
                                        shape.DebugString(), " and ",
                                        squares->tensor()->shape().DebugString()));
    const int64_t m = shape.dim_size(0), n = shape.dim_size(1);
    OP_REQUIRES(context,
                inputs.dims() == 2 && gradients.dims() == 2 && inputs.dim_size(1) == m &&
                    gradients.dim_size(1) == n && inputs.dim_size(0) == gradients.dim_size(0),
                errors::InvalidArgument("inputs ", inputs.shape().DebugString(),
                                        " and output gradients ", gradients.shape().DebugString(),
                                        " do not fit a kernel ", shape.DebugString()));
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(rate.shape()),
                errors::InvalidArgument("the learning rate is no scalar"));
    if (m == 0 || n == 0) return;
    OP_REQUIRES_OK(context, Own(context, kernel.get()));
    OP_REQUIRES_OK(context, Own(context, squares.get()));
    const int64_t rows = inputs.dim_size(0), columns = instructions_->columns;
    const int64_t padded = RoundedUp(n, columns);
    Tensor panels;
    OP_REQUIRES_OK(context, context->allocate_temp(DT_FLOAT, {rows * padded}, &panels));
    Pack(gradients.flat<float>().data(), rows, n, columns, panels.flat<float>().data());
    const Update all{inputs.flat<float>().data(),
                     panels.flat<float>().data(),
                     rows,
                     m,
                     n,
                     {rate.scalar<float>()(), rho_, epsilon_},
                     kernel->tensor()->flat<float>().data(),
                     squares->tensor()->flat<float>().data()};
    // Clock cycles: a vector of products in each, and some for every weight.
    const int64_t cycles = kUpdateRows * padded * (rows + 16) / 16;
    Divide(context, RoundedUp(m, kUpdateRows) / kUpdateRows, cycles,
           [this, &all](int64_t start, int64_t end) { instructions_->update(all, start, end); });
  }

 private:
  const Instructions* instructions_;
  float rho_, epsilon_;
};

}  // namespace

REGISTER_OP("EscalaRmspropOfProduct")
    .Input("kernel: resource")
    .Input("mean_square: resource")
    .Input("inputs: float")
    .Input("output_gradients: float")
    .Input("learning_rate: float")
    .Attr("rho: float")
    .Attr("epsilon: float")
    .Attr("instructions: {'auto', 'avx512f', 'avx2', 'baseline'} = 'auto'")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("EscalaRmspropOfProduct").Device(tensorflow::DEVICE_CPU),
                        ProductRMSprop);
