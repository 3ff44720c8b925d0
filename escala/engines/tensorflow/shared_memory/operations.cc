// Memory that all ranks of a node share: of a dense layer, the kernel and the factors of its
// gradient, and of other gradients, what the ranks sum.
//
// Each rank updates some consecutive rows of the kernel. It writes them into the shared memory,
// where every rank reads the whole kernel. A step of a rank has these operations, in this order:
//
// 1. *Begin* tells how many rows of data the rank has in this step. *Await* waits until all ranks
//    have published their rows of the kernel in the step before. The forward pass follows.
// 2. *Exchange* writes the rank's factors, and waits for those of all others. Every rank comes here
//    after its last use of the kernel, so from here on nobody reads it. The update follows.
// 3. *Publish* writes the rank's rows of the kernel, unless they were updated in place.
//
// A rank waits for others by counters of steps in the shared memory, which only their rank writes.
// It first reads them again and again for some microseconds, and then sleeps (man 2 futex).

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "vectors.h"

namespace {

using tensorflow::TensorShape;
using tensorflow::Var;

constexpr int64_t kLine = 64, kPage = 4096;
// Reads before a rank sleeps, some 20 µs: it would take as long to wake it up.
constexpr int kReads = 2000;

// What a rank tells the others: of each event, the last step in which it took place.
struct alignas(kLine) Counters {
  std::atomic<uint32_t> met;        // times that it waited for all ranks
  std::atomic<uint32_t> begun;      // `rows` is that of this step
  std::atomic<uint32_t> written;    // its factors, or its numbers
  std::atomic<uint32_t> published;  // its rows of the kernel
  std::atomic<uint32_t> rows;
};
using Counter = std::atomic<uint32_t> Counters::*;
// The memory is zeroed, and nobody constructs its counters.
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Memory that ranks share, with the counters of all at its beginning.
class Memory : public tensorflow::ResourceBase {
 public:
  Memory(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  ~Memory() override {
    if (base_) munmap(base_, bytes_);
  }

  // Map a file. The first rank sets its size, before the others open it.
  Status Open(const std::string& path) {
    bytes_ = Allot(RoundedUp(ranks_ * sizeof(Counters), kPage));
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return Failed("cannot open", path);
    const Status status = Map(file, path);
    close(file);
    return status;
  }

  std::string DebugString() const override { return "memory that ranks share"; }
  int rank() const { return rank_; }

 protected:
  // Divide the memory from an offset on; return its end.
  virtual int64_t Allot(int64_t offset) = 0;

  int ranks() const { return ranks_; }
  float* At(int64_t offset) const { return reinterpret_cast<float*>(base_ + offset); }
  Counters& counters(int rank) const { return reinterpret_cast<Counters*>(base_)[rank]; }
  Counters& mine() const { return counters(rank_); }

  void Tell(Counter event, uint32_t step) {
    std::atomic<uint32_t>& counter = mine().*event;
    counter.store(step, std::memory_order_release);
    syscall(SYS_futex, &counter, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  Status WaitForAll(OpKernelContext* context, Counter event, uint32_t step) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::atomic<uint32_t>& counter = counters(rank).*event;
      for (int reads = 0;; ++reads) {
        const uint32_t seen = counter.load(std::memory_order_acquire);
        if (static_cast<int32_t>(seen - step) >= 0) break;
        if (reads < kReads) {
          __builtin_ia32_pause();
          continue;
        }
        const timespec longest{0, 10'000'000};
        syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &longest, nullptr, 0);
        auto* cancellation = context->cancellation_manager();
        if (cancellation && cancellation->IsCancelled()) {
          return errors::Cancelled("the step was cancelled while it waited for rank ", rank);
        }
      }
    }
    return tensorflow::OkStatus();
  }

 private:
  Status Map(int file, const std::string& path) {
    struct stat about;
    if (rank_ == 0 && ftruncate(file, bytes_) != 0) return Failed("cannot extend", path);
    if (fstat(file, &about) != 0) return Failed("cannot read the size of", path);
    if (about.st_size != bytes_) {
      return errors::Unavailable("the memory that ranks share, ", path, ", has ", about.st_size,
                                 " bytes instead of ", bytes_);
    }
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) return Failed("cannot map", path);
    base_ = static_cast<char*>(base);
    return tensorflow::OkStatus();
  }

  static Status Failed(const char* what, const std::string& path) {
    return errors::Unavailable(what, " memory that ranks share, ", path, ": ", strerror(errno));
  }

  const int rank_, ranks_;
  int64_t bytes_ = 0;
  char* base_ = nullptr;
};

// The memory of one layer.
class Layer : public Memory {
 public:
  // sizes: the rows of the kernel of each rank. outputs: its columns. capacity: the most rows of
  // data that all ranks together have in a step.
  Layer(int rank, std::vector<int64_t> sizes, int64_t outputs, int64_t capacity)
      : Memory(rank, sizes.size()),
        sizes_(std::move(sizes)),
        outputs_(outputs),
        capacity_(capacity) {
    for (const int64_t size : sizes_) {
      starts_.push_back(inputs_);
      inputs_ += size;
    }
  }

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t own_inputs() const { return sizes_[rank()]; }

  float* kernel() const { return At(kernel_at_); }
  float* own_kernel() const { return kernel() + starts_[rank()] * outputs_; }
  float* gradients() const { return At(gradients_at_); }
  float* own_columns() const { return columns(rank()); }

  // Wait until all ranks have come here.
  Status Meet(OpKernelContext* context) {
    ++met_;
    Tell(&Counters::met, met_);
    return WaitForAll(context, &Counters::met, met_);
  }

  void Begin(int64_t rows) {
    mine().rows.store(rows, std::memory_order_relaxed);
    Tell(&Counters::begun, step_ + 1);
  }

  Status Await(OpKernelContext* context) const {
    return WaitForAll(context, &Counters::published, step_);
  }

  // Write this rank's factors, (rows, inputs) and (rows, outputs), and wait for those of all ranks.
  // Gives the number of rows of all ranks.
  Status Exchange(OpKernelContext* context, const float* inputs, const float* gradients,
                  int64_t rows, int64_t* all_rows) {
    const uint32_t step = step_ + 1;
    TF_RETURN_IF_ERROR(WaitForAll(context, &Counters::begun, step));
    int64_t before = 0, total = 0;
    for (int other = 0; other < ranks(); ++other) {
      const int64_t theirs = counters(other).rows.load(std::memory_order_relaxed);
      if (other < rank()) before += theirs;
      total += theirs;
    }
    if (mine().rows.load(std::memory_order_relaxed) != rows) {
      return errors::InvalidArgument("the step began with other rows than the ", rows,
                                     " whose factors are exchanged");
    }
    if (total > capacity_) {
      return errors::Internal("the ranks have ", total, " rows in a step; the memory holds ",
                              capacity_);
    }
    std::copy_n(gradients, rows * outputs_, this->gradients() + before * outputs_);
    for (int reader = 0; reader < ranks(); ++reader) {
      const int64_t width = sizes_[reader];
      float* to = columns(reader) + before * width;
      for (int64_t row = 0; row < rows; ++row) {
        to = std::copy_n(inputs + row * inputs_ + starts_[reader], width, to);
      }
    }
    Tell(&Counters::written, step);
    *all_rows = total;
    return WaitForAll(context, &Counters::written, step);
  }

  void Publish(const float* rows) {
    if (rows != own_kernel()) std::copy_n(rows, own_inputs() * outputs_, own_kernel());
    ++step_;
    Tell(&Counters::published, step_);
  }

 protected:
  int64_t Allot(int64_t offset) override {
    const int64_t bytes = sizeof(float);
    kernel_at_ = offset;
    gradients_at_ = RoundedUp(kernel_at_ + inputs_ * outputs_ * bytes, kPage);
    int64_t end = RoundedUp(gradients_at_ + capacity_ * outputs_ * bytes, kPage);
    for (const int64_t size : sizes_) {
      columns_at_.push_back(end);
      end = RoundedUp(end + capacity_ * size * bytes, kLine);
    }
    return RoundedUp(end, kPage);
  }

 private:
  // The columns of all ranks' inputs that belong to the kernel's rows of a rank.
  float* columns(int rank) const { return At(columns_at_[rank]); }

  const std::vector<int64_t> sizes_;
  const int64_t outputs_, capacity_;
  std::vector<int64_t> starts_, columns_at_;
  int64_t inputs_ = 0;
  int64_t kernel_at_, gradients_at_;
  uint32_t met_ = 0, step_ = 0;  // steps that this rank has published
};

// The memory by which ranks sum numbers. Each writes its own ones, waits for all, and sums them in
// the order of the ranks. There are two places for them, which take turns: a rank that writes into
// a place again has seen that all ranks have since written into the other one.
class Sums : public Memory {
 public:
  Sums(int rank, int ranks, int64_t numbers) : Memory(rank, ranks), numbers_(numbers) {}

  // Where this rank writes its numbers.
  float* own() const { return numbers(rank()); }
  int64_t size() const { return numbers_; }

  Status Exchange(OpKernelContext* context) {
    ++step_;
    Tell(&Counters::written, step_);
    return WaitForAll(context, &Counters::written, step_);
  }

  // Sum some of the numbers, of the last exchange.
  void Total(int64_t first, int64_t count, float* to) const {
    const int64_t place = (step_ + 1) % 2;
    std::copy_n(numbers(0, place) + first, count, to);
    for (int rank = 1; rank < ranks(); ++rank) {
      const float* from = numbers(rank, place) + first;
      for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
  }

 protected:
  int64_t Allot(int64_t offset) override {
    numbers_at_ = offset;
    stride_ = RoundedUp(numbers_ * sizeof(float), kLine);
    return RoundedUp(offset + 2 * ranks() * stride_, kPage);
  }

 private:
  float* numbers(int rank) const { return numbers(rank, step_ % 2); }
  float* numbers(int rank, int64_t place) const {
    return At(numbers_at_ + (2 * rank + place) * stride_);
  }

  const int64_t numbers_;
  int64_t numbers_at_, stride_;
  uint32_t step_ = 0;
};

// Some floats of the shared memory as the content of a tensor.
class View : public tensorflow::TensorBuffer {
 public:
  // owned: whether TensorFlow may write there.
  View(Memory* memory, float* data, int64_t count, bool owned)
      : TensorBuffer(data), memory_(memory), bytes_(count * sizeof(float)), owned_(owned) {
    memory_->Ref();
  }
  ~View() override { memory_->Unref(); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return owned_; }
  void FillAllocationDescription(tensorflow::AllocationDescription* about) const override {
    about->set_requested_bytes(bytes_);
    about->set_allocator_name("memory that ranks share");
  }

 private:
  Memory* memory_;
  const size_t bytes_;
  const bool owned_;
};

Tensor Viewed(Memory* memory, float* data, int64_t rows, int64_t columns, bool owned = false) {
  auto* view = new View(memory, data, rows * columns, owned);
  Tensor tensor(DT_FLOAT, TensorShape({rows, columns}), view);
  view->Unref();
  return tensor;
}

// An operation that opens a memory, as its attributes describe it.
class OpenMemory : public OpKernel {
 public:
  explicit OpenMemory(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("path", &path_));
    OP_REQUIRES_OK(context, context->GetAttr("rank", &rank_));
  }

 protected:
  template <typename Kind>
  void Open(OpKernelContext* context, Kind* memory) const {
    const Tensor handle(
        tensorflow::ResourceHandle::MakeRefCountingHandle(memory, context->device()->name()));
    OP_REQUIRES_OK(context, memory->Open(path_));
    context->set_output(0, handle);
  }

  std::string path_;
  int64_t rank_;
};

class OpenLayer : public OpenMemory {
 public:
  explicit OpenLayer(OpKernelConstruction* context) : OpenMemory(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    OP_REQUIRES_OK(context, context->GetAttr("outputs", &outputs_));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &capacity_));
  }

  void Compute(OpKernelContext* context) override {
    Open(context, new Layer(rank_, sizes_, outputs_, capacity_));
  }

 private:
  int64_t outputs_, capacity_;
  std::vector<int64_t> sizes_;
};

class OpenSums : public OpenMemory {
 public:
  explicit OpenSums(OpKernelConstruction* context) : OpenMemory(context) {
    OP_REQUIRES_OK(context, context->GetAttr("ranks", &ranks_));
    OP_REQUIRES_OK(context, context->GetAttr("numbers", &numbers_));
  }

  void Compute(OpKernelContext* context) override {
    Open(context, new Sums(rank_, ranks_, numbers_));
  }

 private:
  int64_t ranks_, numbers_;
};

// An operation on a memory, its first input.
template <typename Kind, Status (*kDo)(OpKernelContext*, Kind*)>
class OnMemory : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Kind> memory;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &memory));
    OP_REQUIRES_OK(context, kDo(context, memory.get()));
  }
};

Status SumInMemory(OpKernelContext* context, Sums* memory) {
  int64_t numbers = 0;
  for (int i = 1; i < context->num_inputs(); ++i) numbers += context->input(i).NumElements();
  if (numbers != memory->size()) {
    return errors::InvalidArgument("a sum of ", numbers, " numbers, in a memory for ",
                                   memory->size());
  }
  float* own = memory->own();
  for (int i = 1; i < context->num_inputs(); ++i) {
    const Tensor& values = context->input(i);
    own = std::copy_n(values.flat<float>().data(), values.NumElements(), own);
  }
  TF_RETURN_IF_ERROR(memory->Exchange(context));
  int64_t first = 0;
  for (int i = 1; i < context->num_inputs(); ++i) {
    const Tensor& values = context->input(i);
    Tensor* total;
    TF_RETURN_IF_ERROR(context->allocate_output(i - 1, values.shape(), &total));
    memory->Total(first, values.NumElements(), total->flat<float>().data());
    first += values.NumElements();
  }
  return tensorflow::OkStatus();
}

// Find a variable (rows, outputs), of which `rows` is given.
Status Find(OpKernelContext* context, int input, int64_t rows, const Layer& memory,
            tensorflow::core::RefCountPtr<Var>* variable) {
  TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, input), variable));
  tensorflow::tf_shared_lock lock(*(*variable)->mu());
  const TensorShape shape({rows, memory.outputs()});
  const Tensor& tensor = *(*variable)->tensor();
  if ((*variable)->is_initialized && tensor.dtype() == DT_FLOAT && tensor.shape() == shape) {
    return tensorflow::OkStatus();
  }
  return errors::InvalidArgument("a variable of shape ", tensor.shape().DebugString(),
                                 " is not float32 of shape ", shape.DebugString());
}

void Set(Var* variable, const Tensor& tensor) {
  tensorflow::mutex_lock lock(*variable->mu());
  *variable->tensor() = tensor;
}

// Make the kernel of the first rank the content of the memory, and the two variables views of it.
Status PlaceKernel(OpKernelContext* context, Layer* memory) {
  tensorflow::core::RefCountPtr<Var> kernel, own;
  TF_RETURN_IF_ERROR(Find(context, 1, memory->inputs(), *memory, &kernel));
  TF_RETURN_IF_ERROR(Find(context, 2, memory->own_inputs(), *memory, &own));
  // Some rank may still write its rows of the last step.
  TF_RETURN_IF_ERROR(memory->Meet(context));
  if (memory->rank() == 0) {
    tensorflow::tf_shared_lock lock(*kernel->mu());
    const float* from = kernel->tensor()->flat<float>().data();
    if (from != memory->kernel()) {
      std::copy_n(from, kernel->tensor()->NumElements(), memory->kernel());
    }
  }
  TF_RETURN_IF_ERROR(memory->Meet(context));
  Set(kernel.get(), Viewed(memory, memory->kernel(), memory->inputs(), memory->outputs()));
  Tensor part =
      Viewed(memory, memory->own_kernel(), memory->own_inputs(), memory->outputs(), true);
  if (!part.IsAligned()) {
    // TensorFlow cannot compute with it. `Publish` will copy these rows into the memory.
    TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, part.shape(), &part));
    std::copy_n(memory->own_kernel(), part.NumElements(), part.flat<float>().data());
  }
  Set(own.get(), part);
  return tensorflow::OkStatus();
}

Status BeginStep(OpKernelContext* context, Layer* memory) {
  memory->Begin(context->input(1).scalar<int32_t>()());
  return tensorflow::OkStatus();
}

Status AwaitKernel(OpKernelContext* context, Layer* memory) { return memory->Await(context); }

Status ExchangeFactors(OpKernelContext* context, Layer* memory) {
  const Tensor& inputs = context->input(2);
  const Tensor& gradients = context->input(3);
  const int64_t rows = inputs.dims() > 0 ? inputs.dim_size(0) : 0;
  if (inputs.shape() != TensorShape({rows, memory->inputs()}) ||
      gradients.shape() != TensorShape({rows, memory->outputs()})) {
    return errors::InvalidArgument("inputs ", inputs.shape().DebugString(),
                                   " and output gradients ", gradients.shape().DebugString(),
                                   " do not fit the layer");
  }
  int64_t all_rows;
  TF_RETURN_IF_ERROR(memory->Exchange(context, inputs.flat<float>().data(),
                                      gradients.flat<float>().data(), rows, &all_rows));
  context->set_output(0, Viewed(memory, memory->own_columns(), all_rows, memory->own_inputs()));
  context->set_output(1, Viewed(memory, memory->gradients(), all_rows, memory->outputs()));
  return tensorflow::OkStatus();
}

Status PublishKernel(OpKernelContext* context, Layer* memory) {
  tensorflow::core::RefCountPtr<Var> own;
  TF_RETURN_IF_ERROR(Find(context, 1, memory->own_inputs(), *memory, &own));
  tensorflow::tf_shared_lock lock(*own->mu());
  memory->Publish(own->tensor()->flat<float>().data());
  return tensorflow::OkStatus();
}

}  // namespace

REGISTER_OP("EscalaOpenLayer")
    .Output("memory: resource")
    .Attr("path: string")
    .Attr("rank: int >= 0")
    .Attr("sizes: list(int)")
    .Attr("outputs: int >= 1")
    .Attr("capacity: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("EscalaOpenSums")
    .Output("memory: resource")
    .Attr("path: string")
    .Attr("rank: int >= 0")
    .Attr("ranks: int >= 1")
    .Attr("numbers: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("EscalaSumInMemory")
    .Input("memory: resource")
    .Input("values: count * float")
    .Output("totals: count * float")
    .Attr("count: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 1; i < context->num_inputs(); ++i) {
        context->set_output(i - 1, context->input(i));
      }
      return tensorflow::OkStatus();
    });

REGISTER_OP("EscalaPlaceKernel")
    .Input("memory: resource")
    .Input("kernel: resource")
    .Input("own: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("EscalaBeginStep")
    .Input("memory: resource")
    .Input("rows: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The kernel is an input, so that TensorFlow orders its later reads after this operation.
REGISTER_OP("EscalaAwaitKernel")
    .Input("memory: resource")
    .Input("kernel: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The rank's part of the kernel is an input, so that TensorFlow orders all that changes it after
// this operation. An optimizer may change weights without a gradient, for example by weight decay.
REGISTER_OP("EscalaExchangeFactors")
    .Input("memory: resource")
    .Input("own: resource")
    .Input("inputs: float")
    .Input("output_gradients: float")
    .Output("own_columns: float")
    .Output("all_output_gradients: float")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < 2; ++i) context->set_output(i, context->UnknownShapeOfRank(2));
      return tensorflow::OkStatus();
    });

REGISTER_OP("EscalaPublishKernel")
    .Input("memory: resource")
    .Input("own: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

#define REGISTER(Operation, ...) \
  REGISTER_KERNEL_BUILDER(Name("Escala" #Operation).Device(tensorflow::DEVICE_CPU), __VA_ARGS__)
REGISTER(OpenLayer, OpenLayer);
REGISTER(OpenSums, OpenSums);
REGISTER(SumInMemory, OnMemory<Sums, SumInMemory>);
REGISTER(PlaceKernel, OnMemory<Layer, PlaceKernel>);
REGISTER(BeginStep, OnMemory<Layer, BeginStep>);
REGISTER(AwaitKernel, OnMemory<Layer, AwaitKernel>);
REGISTER(ExchangeFactors, OnMemory<Layer, ExchangeFactors>);
REGISTER(PublishKernel, OnMemory<Layer, PublishKernel>);
