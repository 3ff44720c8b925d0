// Update variables by RMSprop, each in one pass over memory. A variable is updated by its gradient,
// and the kernel of a dense layer may be updated by the factors of its gradient.
//
// The layer computes X · W, with X of shape (rows, m) and the kernel W of shape (m, n). D, of shape
// (rows, n), is the gradient of this product, and the gradient of W is Xᵀ · D.
//
// The gradient is computed tile by tile. A tile is some rows by some columns of W's shape, summed
// in registers over all terms. A tile is applied as soon as it is complete, while it is in cache.
//
// Every element is summed in the order of its terms, by one chain of multiplications and additions.
// So its value depends neither on the number of threads nor on the width of the vectors, as long as
// the processor has fused multiply-add.

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "vectors.h"

namespace {

using tensorflow::Var;

// Compute a tile: sums[r][c] = Σ_t left[r + t · term] · right[t · columns + c].
// The tile has kRows rows and kVectors vectors of columns. `terms` is the number of terms of each
// sum. `ahead` is the distance in floats at which `left` is fetched into cache.
template <int kLanes, int kVectors, int kRows>
INLINE void Product(const float* left, int64_t term, const float* right, int64_t terms,
                    int64_t ahead, float* sums) {
  Vector<kLanes> total[kRows][kVectors] = {};
  for (int64_t t = 0; t < terms; ++t) {
    Vector<kLanes> columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = Load<kLanes>(right + v * kLanes);
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
      Store<kLanes>(total[r][v], sums + (r * kVectors + v) * kLanes);
    }
  }
}

struct RMSprop { float learning_rate, rho, epsilon; };

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

// The rows of a tile, and its vectors of columns.
constexpr int kUpdateRows = 6;
constexpr int UpdateVectors(int lanes) { return lanes == 16 ? 4 : 2; }

// Update the rows of the kernel that the tiles from `start` to `end` cover.
template <int kLanes, int kVectors>
INLINE void UpdateTiles(const Update& all, int64_t start, int64_t end) {
  constexpr int kColumns = kVectors * kLanes;
  alignas(64) float gradient[kUpdateRows * kColumns];
  std::vector<float> last;
  for (int64_t tile = start; tile < end; ++tile) {
    const int64_t first = tile * kUpdateRows;
    const int64_t height = std::min<int64_t>(kUpdateRows, all.m - first);
    const float* left = all.inputs + first;
    int64_t term = all.m, ahead = 32;
    if (height < kUpdateRows) {
      // A whole tile would read beyond X, so the missing columns of X are zeros.
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
      Product<kLanes, kVectors, kUpdateRows>(left, term, all.panels + column * all.rows, all.rows,
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

VERSIONS(UpdateRows, (const Update& all, int64_t start, int64_t end),
         UpdateTiles<kLanes, UpdateVectors(kLanes)>(all, start, end))

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

// Let the tensor of a variable, whose mutex is held, be writable in place: copy the tensor if its
// memory is shared with a value that was read from the variable and is still in use.
Status Unshare(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (tensor->RefCountIsOne()) return tensorflow::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  const auto from = tensor->flat<float>();
  std::copy_n(from.data(), from.size(), copy.flat<float>().data());
  *tensor = copy;
  return tensorflow::OkStatus();
}

// An update of a variable and its mean squares in place. Both are the first two inputs, and the
// learning rate is the last input.
template <const auto& kVersions>
class RMSpropOperation : public Versioned<kVersions> {
 public:
  explicit RMSpropOperation(OpKernelConstruction* context) : Versioned<kVersions>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rho", &rho_));
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> variable, squares;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &variable));
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 1), &squares));
    OP_REQUIRES(context, variable.get() != squares.get(),
                errors::InvalidArgument("a variable and its mean squares are one variable"));
    const Tensor& rate = context->input(context->num_inputs() - 1);
    // Other operations also lock several variables in the order of these addresses.
    Var *one = variable.get(), *other = squares.get();
    if (other->mu() < one->mu()) std::swap(one, other);
    tensorflow::mutex_lock first(*one->mu());
    tensorflow::mutex_lock second(*other->mu());
    for (Var* operand : {variable.get(), squares.get()}) {
      OP_REQUIRES(context, operand->is_initialized,
                  errors::FailedPrecondition("a variable has no value yet"));
      OP_REQUIRES(context, operand->tensor()->dtype() == DT_FLOAT,
                  errors::InvalidArgument("a variable is not float32"));
      OP_REQUIRES_OK(context, Unshare(context, operand));
    }
    OP_REQUIRES(context, variable->tensor()->shape() == squares->tensor()->shape(),
                errors::InvalidArgument("a variable and its mean squares have the shapes ",
                                        variable->tensor()->shape().DebugString(), " and ",
                                        squares->tensor()->shape().DebugString()));
    OP_REQUIRES_OK(context, Do(context, {rate.scalar<float>()(), rho_, epsilon_},
                               variable->tensor(), squares->tensor()));
  }

 protected:
  // Check the other inputs against the shape of the variable, and update it.
  virtual Status Do(OpKernelContext* context, const RMSprop& scalars, Tensor* variable,
                    Tensor* squares) const = 0;

 private:
  float rho_, epsilon_;
};

// Update a kernel by the factors of its gradient.
class RMSpropOfProduct : public RMSpropOperation<UpdateRowsVersions> {
  using RMSpropOperation::RMSpropOperation;

  Status Do(OpKernelContext* context, const RMSprop& scalars, Tensor* kernel,
            Tensor* squares) const override {
    const Tensor& inputs = context->input(2);
    const Tensor& gradients = context->input(3);
    const int64_t rows = inputs.dims() > 0 ? inputs.dim_size(0) : 0;
    const int64_t m = kernel->dims() == 2 ? kernel->dim_size(0) : -1;
    const int64_t n = kernel->dims() == 2 ? kernel->dim_size(1) : -1;
    if (m < 0 || inputs.shape() != TensorShape({rows, m}) ||
        gradients.shape() != TensorShape({rows, n})) {
      return errors::InvalidArgument("inputs ", inputs.shape().DebugString(),
                                     " and output gradients ", gradients.shape().DebugString(),
                                     " do not fit a kernel ", kernel->shape().DebugString());
    }
    const int64_t columns = version_->lanes * UpdateVectors(version_->lanes);
    const int64_t padded = RoundedUp(n, columns);
    Tensor panels;
    TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, {rows * padded}, &panels));
    Pack(gradients.flat<float>().data(), rows, n, columns, panels.flat<float>().data());
    const Update all{
        inputs.flat<float>().data(),  panels.flat<float>().data(),  rows, m, n, scalars,
        kernel->flat<float>().data(), squares->flat<float>().data()};
    // Clock cycles: one for every vector of products, and some for every weight.
    const int64_t cycles = kUpdateRows * padded * (rows + 16) / 16;
    Divide(context, RoundedUp(m, kUpdateRows) / kUpdateRows, cycles,
           [this, &all](int64_t start, int64_t end) { version_->function(all, start, end); });
    return tensorflow::OkStatus();
  }
};

VERSIONS(Apply,
         (const RMSprop& scalars, int64_t count, const float* gradient, float* weights,
          float* squares),
         Apply(scalars, count, gradient, weights, squares))

// Update a variable by its gradient.
class RMSpropOfGradient : public RMSpropOperation<ApplyVersions> {
  using RMSpropOperation::RMSpropOperation;

  Status Do(OpKernelContext* context, const RMSprop& scalars, Tensor* variable,
            Tensor* squares) const override {
    const TensorShape& shape = context->input(2).shape();
    if (shape != variable->shape()) {
      return errors::InvalidArgument("a gradient ", shape.DebugString(),
                                     " is not one of a variable ", variable->shape().DebugString());
    }
    const float* gradient = context->input(2).flat<float>().data();
    float* weights = variable->flat<float>().data();
    float* averages = squares->flat<float>().data();
    Divide(context, variable->NumElements(), 2, [=, this](int64_t start, int64_t end) {
      version_->function(scalars, end - start, gradient + start, weights + start, averages + start);
    });
    return tensorflow::OkStatus();
  }
};

}  // namespace

OPERATION("EscalaRmspropOfProduct", RMSpropOfProduct)
    .Input("kernel: resource").Input("mean_square: resource")
    .Input("inputs: float").Input("output_gradients: float").Input("learning_rate: float")
    .Attr("rho: float").Attr("epsilon: float").Attr(kInstructions)
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

OPERATION("EscalaRmsprop", RMSpropOfGradient)
    .Input("variable: resource").Input("mean_square: resource")
    .Input("gradient: float").Input("learning_rate: float")
    .Attr("rho: float").Attr("epsilon: float").Attr(kInstructions)
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);
