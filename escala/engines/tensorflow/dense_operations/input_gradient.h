// The gradient of a dense layer's input: D · Wᵀ, with the gradient D of the layer's output, of
// shape (rows, n), and the kernel W, of shape (m, n).
//
// The product is computed tile by tile: as many rows of W as a vector has lanes, by as many rows of
// D. The tile is summed in registers, with a vector for each row of W, transposed there, and
// stored.

#pragma once

#include "vectors.h"

namespace {

struct InputGradient {
  const float *kernel, *panels;  // W, and Dᵀ in panels of rows: (panels, n, lanes).
  int64_t rows, m, n;
  float* result;  // (rows, m)
};

// Take the lanes of two vectors in turns.
template <int kLanes, int... kLane>
INLINE void Interleave(Vector<kLanes> one, Vector<kLanes> other, Vector<kLanes>* low,
                       Vector<kLanes>* high, std::integer_sequence<int, kLane...>) {
  typedef int Lanes __attribute__((vector_size(4 * kLanes)));
  constexpr int kHalf = kLanes / 2;
  *low = __builtin_shuffle(one, other, Lanes{(kLane / 2 + kLane % 2 * kLanes)...});
  *high = __builtin_shuffle(one, other, Lanes{(kLane / 2 + kHalf + kLane % 2 * kLanes)...});
}

// Transpose a square of as many vectors as each has lanes.
template <int kLanes>
INLINE void Transpose(Vector<kLanes>* square) {
#pragma GCC unroll 4
  for (int pass = 1; pass < kLanes; pass *= 2) {
    Vector<kLanes> next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      Interleave<kLanes>(square[i], square[i + kLanes / 2], &next[2 * i], &next[2 * i + 1],
                         std::make_integer_sequence<int, kLanes>());
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) square[i] = next[i];
  }
}

// Multiply some rows of W by two panels: sums[i] and sums[i + kLanes] are of row i.
template <int kLanes, int kRows>
INLINE void ProductOfPanels(const float* kernel, int64_t n, const float* one, const float* other,
                            int64_t ahead, Vector<kLanes>* sums) {
  Vector<kLanes> total[kRows][2] = {};
  for (int64_t k = 0; k < n; ++k) {
    const Vector<kLanes> left = Load<kLanes>(one + k * kLanes);
    const Vector<kLanes> right = Load<kLanes>(other + k * kLanes);
    if (ahead) __builtin_prefetch(kernel + ahead + k * kRows);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      total[i][0] += kernel[i * n + k] * left;
      total[i][1] += kernel[i * n + k] * right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    sums[i] = total[i][0];
    sums[i + kLanes] = total[i][1];
  }
}

// Compute the columns of the result that belong to a tile of W, for the rows of two panels.
// `kernel` holds all rows of the tile, and `ahead` tells where the next tile begins, or 0.
template <int kLanes>
INLINE void Tile(const InputGradient& all, int64_t tile, const float* kernel, int64_t ahead,
                 int64_t row) {
  constexpr int kRows = kLanes / 2;
  const int64_t first = tile * kLanes, width = std::min<int64_t>(kLanes, all.m - first);
  const float* panels = all.panels + row * all.n;
  Vector<kLanes> sums[2 * kLanes];
  for (int part = 0; part < kLanes; part += kRows) {
    ProductOfPanels<kLanes, kRows>(kernel + part * all.n, all.n, panels, panels + kLanes * all.n,
                                   ahead, sums + part);
  }
  for (int panel = 0; panel < 2; ++panel, row += kLanes) {
    const int64_t height = std::min<int64_t>(kLanes, all.rows - row);
    Vector<kLanes>* square = sums + panel * kLanes;
    Transpose<kLanes>(square);
    float* result = all.result + row * all.m + first;
    if (width == kLanes && height == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store<kLanes>(square[i], result + i * all.m);
    } else {
      for (int64_t i = 0; i < height; ++i) {
        std::copy_n(reinterpret_cast<const float*>(square + i), width, result + i * all.m);
      }
    }
  }
}

// Compute the columns of the result that the tiles from `start` to `end` cover.
// The result's rows lie on as many pages. So some tiles are computed for the same few rows, one
// after the other, while they are in cache.
template <int kLanes>
INLINE void InputGradientTiles(const InputGradient& all, int64_t start, int64_t end) {
  constexpr int64_t kTiles = 8;
  std::vector<float> last;
  for (; start < end; start += kTiles) {
    for (int64_t row = 0; row < all.rows; row += 2 * kLanes) {
      for (int64_t tile = start; tile < std::min(start + kTiles, end); ++tile) {
        const float* kernel = all.kernel + tile * kLanes * all.n;
        int64_t ahead = row == 0 ? kLanes * all.n : 0;
        if (const int64_t width = all.m - tile * kLanes; width < kLanes) {
          // A whole tile would read beyond W: its missing rows are zeros.
          last.assign(kLanes * all.n, 0.0f);
          std::copy_n(kernel, width * all.n, last.data());
          kernel = last.data(), ahead = 0;
        }
        Tile<kLanes>(all, tile, kernel, ahead, row);
      }
    }
  }
}

VERSIONS(InputGradient, (const InputGradient& all, int64_t start, int64_t end),
         InputGradientTiles<kLanes>(all, start, end))

class InputGradientOperation : public Versioned<InputGradientVersions> {
 public:
  using Versioned::Versioned;

  void Compute(OpKernelContext* context) override {
    const Tensor& gradients = context->input(0);
    const Tensor& kernel = context->input(1);
    OP_REQUIRES(
        context,
        gradients.dims() == 2 && kernel.dims() == 2 && gradients.dim_size(1) == kernel.dim_size(1),
        errors::InvalidArgument("output gradients ", gradients.shape().DebugString(),
                                " do not fit a kernel ", kernel.shape().DebugString()));
    const int64_t rows = gradients.dim_size(0), m = kernel.dim_size(0), n = kernel.dim_size(1);
    Tensor* result;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows, m}, &result));
    if (rows == 0 || m == 0) return;
    const int64_t side = version_->lanes, padded = RoundedUp(rows, 2 * side);
    Tensor panels;
    OP_REQUIRES_OK(context, context->allocate_temp(DT_FLOAT, {padded * n}, &panels));
    // Dᵀ is laid out as panels (panels, n, side), padded with zeros.
    const float* from = gradients.flat<float>().data();
    float* to = panels.flat<float>().data();
    for (int64_t row = 0; row < padded; row += side) {
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t i = row; i < row + side; ++i) *to++ = i < rows ? from[i * n + k] : 0.0f;
      }
    }
    const InputGradient all{kernel.flat<float>().data(), panels.flat<float>().data(), rows, m, n,
                            result->flat<float>().data()};
    // Clock cycles: a vector of products in each.
    Divide(context, RoundedUp(m, side) / side, padded * (n + 16),
           [this, &all](int64_t start, int64_t end) { version_->function(all, start, end); });
  }
};

}  // namespace

OPERATION("EscalaInputGradient", InputGradientOperation)
    .Input("output_gradients: float").Input("kernel: float")
    .Output("input_gradients: float").Attr(kInstructions)
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
