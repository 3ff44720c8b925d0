// Two convolutions over letters, each with ReLU and pooling, looked up in tables.
//
// After the first pooling, each position depends on a k-mer. Each tap of the second convolution has
// a table with a row for every k-mer, and the convolution is a sum of one row from each table (see
// `lookup.py`). With the tables T_t, of shape (k-mers, filters), and the numbers n of the k-mers in
// a row of codes, a value is
//
//   max(0, max_j Σ_t T_t[n[stride · (pool · position + j + t)]])      0 ≤ j < pool, 0 ≤ t < taps
//
// The gradient of a value goes to the first of the largest sums, if this sum is positive. The
// tables of one model stay in the cache of a core.
//
// Vectors of 512 bits are not used: GCC 12 compiles their comparisons lane by lane.

#include <cmath>

#include "vectors.h"

namespace {

struct Lookups {
  const int32_t* kmers;  // (rows, places)
  const float* tables;   // (taps, table, padded)
  int64_t rows, places, positions, taps, table, filters, padded;
  int64_t stride, pool;

  // Return the k-mers of a position.
  INLINE const int32_t* Seen(int64_t row, int64_t position) const {
    return kmers + row * places + stride * pool * position;
  }
};

// The vectors of a block of columns, and the most lanes of a vector.
constexpr int kVectors = 2, kWidest = 8;
template <int kLanes> constexpr int kColumns = kVectors * kLanes;

// Integers, as many as a vector has lanes.
template <int kLanes> using Numbers = decltype(Vector<kLanes>() > Vector<kLanes>());

// The largest sum of the tables' rows in a pool, and the number of this sum.
template <int kLanes>
struct Largest {
  Vector<kLanes> value[kVectors];
  Numbers<kLanes> number[kVectors] = {};

  INLINE Largest(const Lookups& all, const int32_t* kmers, int64_t column) {
    Sum(all, kmers, column, value);
    for (int64_t j = 1; j < all.pool; ++j) {
      Vector<kLanes> sum[kVectors];
      Sum(all, kmers + j * all.stride, column, sum);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        // NaN counts as the largest, so that the loss becomes NaN.
        const auto larger = (sum[v] > value[v]) | (sum[v] != sum[v]);
        value[v] = larger ? sum[v] : value[v];
        number[v] = larger ? Numbers<kLanes>{} + static_cast<int32_t>(j) : number[v];
      }
    }
  }

  static INLINE void Sum(const Lookups& all, const int32_t* kmers, int64_t column,
                         Vector<kLanes>* sum) {
    for (int64_t t = 0; t < all.taps; ++t) {
      const float* row = all.tables + (t * all.table + kmers[t * all.stride]) * all.padded + column;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vector<kLanes> part = Load<kLanes>(row + v * kLanes);
        sum[v] = t == 0 ? part : sum[v] + part;
      }
    }
  }
};

// Compute the values of the rows from `start` to `end`, (rows, positions, filters).
template <int kLanes>
INLINE void ValuesOfRows(const Lookups& all, int64_t start, int64_t end, float* values) {
  for (int64_t row = start; row < end; ++row) {
    for (int64_t position = 0; position < all.positions; ++position) {
      const int32_t* kmers = all.Seen(row, position);
      float* to = values + (row * all.positions + position) * all.filters;
      for (int64_t column = 0; column < all.padded; column += kColumns<kLanes>) {
        Largest<kLanes> largest(all, kmers, column);
        alignas(64) float block[kColumns<kLanes>];
        const int64_t width = std::min<int64_t>(kColumns<kLanes>, all.filters - column);
        float* stored = width == kColumns<kLanes> ? to + column : block;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const Vector<kLanes> value = largest.value[v];
          // As in ReLU, NaN stays NaN.
          Store<kLanes>(value < 0.0f ? Vector<kLanes>{} : value, stored + v * kLanes);
        }
        if (stored == block) std::copy_n(block, width, to + column);
      }
    }
  }
}

// Add the gradients of the tables' columns of the blocks from `start` to `end`.
// One thread adds all rows in order, so the result does not depend on the number of threads.
// `upstream` has the shape of the values, and `gradients` has the shape of the padded tables.
template <int kLanes>
INLINE void GradientsOfBlocks(const Lookups& all, int64_t start, int64_t end, const float* upstream,
                              float* gradients) {
  for (int64_t column = start * kColumns<kLanes>; column < end * kColumns<kLanes>;
       column += kColumns<kLanes>) {
    const int64_t width = std::min<int64_t>(kColumns<kLanes>, all.filters - column);
    alignas(64) float block[kColumns<kLanes>] = {};
    for (int64_t row = 0; row < all.rows; ++row) {
      for (int64_t position = 0; position < all.positions; ++position) {
        const int32_t* kmers = all.Seen(row, position);
        const float* from = upstream + (row * all.positions + position) * all.filters + column;
        if (width < kColumns<kLanes>) from = std::copy_n(from, width, block) - width;
        Largest<kLanes> largest(all, kmers, column);
        Vector<kLanes> part[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const Vector<kLanes> given = Load<kLanes>(from + v * kLanes);
          part[v] = largest.value[v] > 0.0f ? given : Vector<kLanes>{};
        }
        for (int64_t j = 0; j < all.pool; ++j) {
          for (int64_t t = 0; t < all.taps; ++t) {
            const int64_t kmer = kmers[(j + t) * all.stride];
            float* to = gradients + (t * all.table + kmer) * all.padded + column;
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
              const auto chosen = largest.number[v] == static_cast<int32_t>(j);
              float* lane = to + v * kLanes;
              Store<kLanes>(Load<kLanes>(lane) + (chosen ? part[v] : Vector<kLanes>{}), lane);
            }
          }
        }
      }
    }
  }
}

VERSIONS(Values, (const Lookups& all, int64_t start, int64_t end, float* values),
         ValuesOfRows<kLanes>(all, start, end, values))
VERSIONS(Gradients,
         (const Lookups& all, int64_t start, int64_t end, const float* upstream, float* gradients),
         GradientsOfBlocks<kLanes>(all, start, end, upstream, gradients))

template <const auto& kVersions>
class LookupsOperation : public Versioned<kVersions, kWidest> {
 public:
  explicit LookupsOperation(OpKernelConstruction* context)
      : Versioned<kVersions, kWidest>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("stride", &stride_));
    OP_REQUIRES_OK(context, context->GetAttr("pool", &pool_));
  }

 protected:
  // Describe the lookups of an operation whose first inputs are k-mers and tables.
  Status Describe(OpKernelContext* context, Tensor* padded, Lookups* all) const {
    const Tensor& kmers = context->input(0);
    const Tensor& tables = context->input(1);
    if (kmers.dims() != 2 || tables.dims() != 3 || tables.dim_size(0) == 0) {
      return errors::InvalidArgument("k-mers ", kmers.shape().DebugString(), " and tables ",
                                     tables.shape().DebugString(),
                                     " are not (rows, places) and (taps, k-mers, filters)");
    }
    const int64_t taps = tables.dim_size(0), table = tables.dim_size(1);
    const int64_t filters = tables.dim_size(2), places = kmers.dim_size(1);
    const int64_t columns = RoundedUp(filters, kVectors * this->version_->lanes);
    const int64_t seen = RoundedUp(places, stride_) / stride_;  // after the first pooling
    const int64_t positions = std::max<int64_t>(seen - taps + 1, 0) / pool_;
    *all = {kmers.flat<int32_t>().data(), tables.flat<float>().data(), kmers.dim_size(0), places,
            positions, taps, table, filters, columns, stride_, pool_};
    int32_t least = 0, most = 0;
    for (int64_t i = 0; i < kmers.NumElements(); ++i) {
      least = std::min(least, all->kmers[i]), most = std::max(most, all->kmers[i]);
    }
    if (least < 0 || most >= table) {
      return errors::InvalidArgument("a k-mer is not in a table of ", table);
    }
    if (all->padded == filters) return tensorflow::OkStatus();
    TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, {taps * table * all->padded}, padded));
    float* to = padded->flat<float>().data();
    for (const float* from = all->tables; from < all->tables + taps * table * filters;) {
      to = std::copy_n(from, filters, to);
      to = std::fill_n(to, all->padded - filters, 0.0f);
      from += filters;
    }
    all->tables = padded->flat<float>().data();
    return tensorflow::OkStatus();
  }

  int64_t stride_, pool_;
};

class LookupsForward : public LookupsOperation<ValuesVersions> {
 public:
  using LookupsOperation::LookupsOperation;

  void Compute(OpKernelContext* context) override {
    Lookups all;
    Tensor padded, *values;
    OP_REQUIRES_OK(context, Describe(context, &padded, &all));
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {all.rows, all.positions, all.filters}, &values));
    float* to = values->flat<float>().data();
    const int64_t cycles = all.positions * all.pool * (all.taps + 1) * all.padded / 16;
    Divide(context, all.rows, cycles, [this, &all, to](int64_t start, int64_t end) {
      version_->function(all, start, end, to);
    });
  }
};

class LookupsBackward : public LookupsOperation<GradientsVersions> {
 public:
  using LookupsOperation::LookupsOperation;

  void Compute(OpKernelContext* context) override {
    Lookups all;
    Tensor padded, sums, *gradients;
    OP_REQUIRES_OK(context, Describe(context, &padded, &all));
    const Tensor& upstream = context->input(2);
    const TensorShape shape({all.rows, all.positions, all.filters});
    OP_REQUIRES(context, upstream.shape() == shape,
                errors::InvalidArgument("the gradient ", upstream.shape().DebugString(),
                                        " is not one of values ", shape.DebugString()));
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(1).shape(), &gradients));
    float *result = gradients->flat<float>().data(), *to = result;
    const int64_t rows = all.taps * all.table;
    if (all.padded != all.filters) {
      OP_REQUIRES_OK(context, context->allocate_temp(DT_FLOAT, {rows * all.padded}, &sums));
      to = sums.flat<float>().data();
    }
    std::fill_n(to, rows * all.padded, 0.0f);
    const float* from = upstream.flat<float>().data();
    const int64_t cycles = all.rows * all.positions * all.pool * (3 * all.taps + 1) * kVectors;
    Divide(context, all.padded / (kVectors * version_->lanes), cycles,
           [this, &all, from, to](int64_t start, int64_t end) {
             version_->function(all, start, end, from, to);
           });
    for (int64_t row = 0; to != result && row < rows; ++row) {
      std::copy_n(to + row * all.padded, all.filters, result + row * all.filters);
    }
  }
};

// Number the k-mers at every place of the codes, (rows, length), with the first letter as the
// highest digit.
class KmersOperation : public OpKernel {
 public:
  explicit KmersOperation(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("alphabet", &alphabet_));
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
    OP_REQUIRES(context, k_ * std::log2(static_cast<double>(alphabet_)) < 31,
                errors::InvalidArgument("too many k-mers of ", k_, " letters"));
  }

  void Compute(OpKernelContext* context) override {
    const TensorShape& shape = context->input(0).shape();
    OP_REQUIRES(context, shape.dims() == 2 && shape.dim_size(1) >= k_,
                errors::InvalidArgument("codes ", shape.DebugString(), " have no place for ", k_,
                                        " letters"));
    const int64_t rows = shape.dim_size(0), length = shape.dim_size(1), places = length - k_ + 1;
    const uint8_t* codes = context->input(0).flat<uint8_t>().data();
    uint8_t most = 0;
    for (int64_t i = 0; i < rows * length; ++i) most = std::max(most, codes[i]);
    OP_REQUIRES(context, most < alphabet_,
                errors::InvalidArgument("a code is not in an alphabet of ", alphabet_));
    Tensor* numbers;
    OP_REQUIRES_OK(context, context->allocate_output(0, {rows, places}, &numbers));
    int32_t* kmers = numbers->flat<int32_t>().data();
    const int32_t alphabet = alphabet_;
    for (int64_t row = 0; row < rows; ++row, codes += length, kmers += places) {
      std::fill_n(kmers, places, 0);
      for (int64_t i = 0; i < k_; ++i) {
        for (int64_t at = 0; at < places; ++at) kmers[at] = kmers[at] * alphabet + codes[at + i];
      }
    }
  }

 private:
  int64_t alphabet_, k_;
};

}  // namespace

OPERATION("EscalaKmers", KmersOperation)
    .Input("codes: uint8").Output("kmers: int32")
    .Attr("alphabet: int >= 1").Attr("k: int >= 1")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

OPERATION("EscalaLookups", LookupsForward)
    .Input("kmers: int32").Input("tables: float").Output("values: float")
    .Attr("stride: int >= 1").Attr("pool: int >= 1").Attr(kInstructions)
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

OPERATION("EscalaLookupsGradient", LookupsBackward)
    .Input("kmers: int32").Input("tables: float").Input("value_gradients: float")
    .Output("table_gradients: float")
    .Attr("stride: int >= 1").Attr("pool: int >= 1").Attr(kInstructions)
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);
