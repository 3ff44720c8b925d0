// Memory that all ranks of a node share. It holds, for a dense layer, the kernel and the factors of
// its gradient, and for sums of other gradients, the numbers of each rank.
//
// Each rank updates some consecutive rows of the kernel. It writes these rows into the shared
// memory, from which every rank reads the whole kernel. A step of a rank has these operations, in
// this order:
//
// 1. *Begin* tells how many rows of data the rank has in this step. *Await* waits until all ranks
//    have published their rows of the kernel in the step before. The forward pass follows.
// 2. *Exchange* writes the rank's factors, and waits for those of all others. Every rank comes here
//    after its last use of the kernel, so from here on nobody reads it. The update follows.
// 3. *Publish* writes the rank's rows of the kernel, unless they were updated in place.
//
// Ranks wait for each other by counters of steps in the shared memory. Only the rank of a counter
// writes it. A rank that waits first reads a counter repeatedly for some microseconds, and then
// sleeps (man 2 futex).

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "vectors.h"

namespace {

using tensorflow::AttrSlice;
using tensorflow::ResourceBase;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

constexpr int64_t kLine = 64, kPage = 4096;
// Reads before a rank sleeps, about 20 µs: waking a rank takes as long.
constexpr int kReads = 2000;

// The counters of a rank for other ranks: for each event, the last step in which it happened.
struct alignas(kLine) Counters {
  std::atomic<uint32_t> met;        // times that it waited for all ranks
  std::atomic<uint32_t> begun;      // `rows` is that of this step
  std::atomic<uint32_t> written;    // its factors, or its numbers
  std::atomic<uint32_t> published;  // its rows of the kernel
  std::atomic<uint32_t> rows;
};
using Counter = std::atomic<uint32_t> Counters::*;
// The memory begins as zeros, and no constructor runs for the counters.
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// An attribute of an operation; the operation's declaration guarantees that it exists.
template <typename Type>
Type Attribute(AttrSlice attributes, const char* name) {
  Type value;
  TF_CHECK_OK(tensorflow::GetNodeAttr(attributes, name, &value));
  return value;
}

// Memory that ranks share. It begins with the counters of all ranks.
class Memory : public ResourceBase {
 public:
  Memory(AttrSlice attributes, int ranks)
      : rank_(Attribute<int64_t>(attributes, "rank")),
        ranks_(ranks),
        path_(Attribute<std::string>(attributes, "path")) {}
  ~Memory() override {
    if (base_) munmap(base_, bytes_);
  }

  // Map the file. The first rank sets the size before other ranks open the file.
  Status Open() {
    bytes_ = Allot(RoundedUp(ranks_ * sizeof(Counters), kPage));
    const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return Failed("cannot open");
    struct stat about;
    Status status;
    if (rank_ == 0 && ftruncate(file, bytes_) != 0) {
      status = Failed("cannot extend");
    } else if (fstat(file, &about) != 0) {
      status = Failed("cannot read the size of");
    } else if (about.st_size != bytes_) {
      status = errors::Unavailable("the memory that ranks share, ", path_, ", has ", about.st_size,
                                   " bytes instead of ", bytes_);
    } else if (void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
               base == MAP_FAILED) {
      status = Failed("cannot map");
    } else {
      base_ = static_cast<char*>(base);
    }
    close(file);
    return status;
  }

  std::string DebugString() const override { return "memory that ranks share"; }

 protected:
  // Divide the memory from an offset on; return its end.
  virtual int64_t Allot(int64_t offset) = 0;

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

  const int rank_, ranks_;

 private:
  Status Failed(const char* what) const {
    return errors::Unavailable(what, " memory that ranks share, ", path_, ": ", strerror(errno));
  }

  const std::string path_;
  int64_t bytes_ = 0;
  char* base_ = nullptr;
};

// Some floats of the shared memory as the content of a tensor.
class View : public tensorflow::TensorBuffer {
 public:
  // owned: whether TensorFlow may write there.
  View(ResourceBase* memory, float* data, int64_t count, bool owned)
      : TensorBuffer(data),
        memory_(tsl::core::GetNewRef(memory)),
        bytes_(count * sizeof(float)),
        owned_(owned) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return owned_; }
  void FillAllocationDescription(tensorflow::AllocationDescription* about) const override {
    about->set_requested_bytes(bytes_);
    about->set_allocator_name("memory that ranks share");
  }

 private:
  RefCountPtr<ResourceBase> memory_;
  const size_t bytes_;
  const bool owned_;
};

Tensor Viewed(ResourceBase* memory, float* at, int64_t rows, int64_t columns, bool owned = false) {
  auto* view = new View(memory, at, rows * columns, owned);
  Tensor tensor(DT_FLOAT, TensorShape({rows, columns}), view);
  view->Unref();
  return tensor;
}

// The memory of one layer.
class Layer : public Memory {
 public:
  // sizes: the number of the kernel's rows of each rank. outputs: the number of the kernel's
  // columns. capacity: the most rows of data in a step, all ranks together.
  explicit Layer(AttrSlice attributes)
      : Memory(attributes, Attribute<std::vector<int64_t>>(attributes, "sizes").size()),
        sizes_(Attribute<std::vector<int64_t>>(attributes, "sizes")),
        outputs_(Attribute<int64_t>(attributes, "outputs")),
        capacity_(Attribute<int64_t>(attributes, "capacity")) {
    for (const int64_t size : sizes_) {
      starts_.push_back(inputs_);
      inputs_ += size;
    }
  }

  // Copy the first rank's kernel into the memory, and make the two variables views of the memory.
  Status Place(OpKernelContext* context) {
    RefCountPtr<Var> whole, local;
    TF_RETURN_IF_ERROR(Find(context, 1, inputs_, &whole));
    TF_RETURN_IF_ERROR(Find(context, 2, sizes_[rank_], &local));
    // A rank may still write its rows of the last step.
    TF_RETURN_IF_ERROR(Meet(context));
    if (rank_ == 0) {
      tensorflow::tf_shared_lock lock(*whole->mu());
      const float* from = whole->tensor()->flat<float>().data();
      if (from != kernel()) std::copy_n(from, inputs_ * outputs_, kernel());
    }
    TF_RETURN_IF_ERROR(Meet(context));
    Set(whole.get(), Viewed(this, kernel(), inputs_, outputs_));
    Tensor part = Viewed(this, local_kernel(), sizes_[rank_], outputs_, true);
    if (!part.IsAligned()) {
      // TensorFlow cannot compute at this address, so `Publish` copies these rows into the memory.
      TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, part.shape(), &part));
      std::copy_n(local_kernel(), part.NumElements(), part.flat<float>().data());
    }
    Set(local.get(), part);
    return tensorflow::OkStatus();
  }

  Status Begin(OpKernelContext* context) {
    mine().rows.store(context->input(1).scalar<int32_t>()(), std::memory_order_relaxed);
    Tell(&Counters::begun, step_ + 1);
    return tensorflow::OkStatus();
  }

  Status Await(OpKernelContext* context) {
    return WaitForAll(context, &Counters::published, step_);
  }

  // Write this rank's factors, (rows, inputs) and (rows, outputs), and wait for all ranks' factors.
  Status Exchange(OpKernelContext* context) {
    const Tensor& inputs = context->input(2);
    const Tensor& gradients = context->input(3);
    const int64_t rows = inputs.dims() > 0 ? inputs.dim_size(0) : 0;
    if (inputs.shape() != TensorShape({rows, inputs_}) ||
        gradients.shape() != TensorShape({rows, outputs_})) {
      return errors::InvalidArgument("inputs ", inputs.shape().DebugString(),
                                     " and output gradients ", gradients.shape().DebugString(),
                                     " do not fit the layer");
    }
    const uint32_t step = step_ + 1;
    TF_RETURN_IF_ERROR(WaitForAll(context, &Counters::begun, step));
    int64_t before = 0, total = 0;
    for (int other = 0; other < ranks_; ++other) {
      const int64_t theirs = counters(other).rows.load(std::memory_order_relaxed);
      if (other < rank_) before += theirs;
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
    std::copy_n(gradients.flat<float>().data(), rows * outputs_,
                At(gradients_at_) + before * outputs_);
    for (int reader = 0; reader < ranks_; ++reader) {
      const float* from = inputs.flat<float>().data() + starts_[reader];
      float* to = At(columns_at_[reader]) + before * sizes_[reader];
      for (int64_t row = 0; row < rows; ++row) {
        to = std::copy_n(from + row * inputs_, sizes_[reader], to);
      }
    }
    Tell(&Counters::written, step);
    TF_RETURN_IF_ERROR(WaitForAll(context, &Counters::written, step));
    context->set_output(0, Viewed(this, At(columns_at_[rank_]), total, sizes_[rank_]));
    context->set_output(1, Viewed(this, At(gradients_at_), total, outputs_));
    return tensorflow::OkStatus();
  }

  Status Publish(OpKernelContext* context) {
    RefCountPtr<Var> local;
    TF_RETURN_IF_ERROR(Find(context, 1, sizes_[rank_], &local));
    tensorflow::tf_shared_lock lock(*local->mu());
    const float* rows = local->tensor()->flat<float>().data();
    if (rows != local_kernel()) std::copy_n(rows, sizes_[rank_] * outputs_, local_kernel());
    Tell(&Counters::published, ++step_);
    return tensorflow::OkStatus();
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
  float* kernel() const { return At(kernel_at_); }
  float* local_kernel() const { return kernel() + starts_[rank_] * outputs_; }

  // Wait until all ranks have called this.
  Status Meet(OpKernelContext* context) {
    Tell(&Counters::met, ++met_);
    return WaitForAll(context, &Counters::met, met_);
  }

  // Find a variable (rows, outputs).
  Status Find(OpKernelContext* context, int input, int64_t rows, RefCountPtr<Var>* variable) const {
    TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, input), variable));
    tensorflow::tf_shared_lock lock(*(*variable)->mu());
    const TensorShape shape({rows, outputs_});
    const Tensor& tensor = *(*variable)->tensor();
    if ((*variable)->is_initialized && tensor.dtype() == DT_FLOAT && tensor.shape() == shape) {
      return tensorflow::OkStatus();
    }
    return errors::InvalidArgument("a variable of shape ", tensor.shape().DebugString(),
                                   " is not float32 of shape ", shape.DebugString());
  }

  static void Set(Var* variable, const Tensor& tensor) {
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = tensor;
  }

  const std::vector<int64_t> sizes_;
  const int64_t outputs_, capacity_;
  // The first row of each rank, and the offset of the inputs' columns for the rows of each rank.
  std::vector<int64_t> starts_, columns_at_;
  int64_t inputs_ = 0;
  int64_t kernel_at_, gradients_at_;
  uint32_t met_ = 0, step_ = 0;  // steps that this rank has published
};

// The memory by which ranks sum numbers. Each rank writes its numbers, waits for all ranks, and
// sums all numbers in the order of the ranks. Steps alternate between two places for the numbers.
// Before a rank writes into a place again, it has seen that all ranks have written into the other
// place.
class Sums : public Memory {
 public:
  explicit Sums(AttrSlice attributes)
      : Memory(attributes, Attribute<int64_t>(attributes, "ranks")),
        numbers_(Attribute<int64_t>(attributes, "numbers")) {}

  Status Sum(OpKernelContext* context) {
    int64_t given = 0;
    for (int i = 1; i < context->num_inputs(); ++i) given += context->input(i).NumElements();
    if (given != numbers_) {
      return errors::InvalidArgument("a sum of ", given, " numbers, in a memory for ", numbers_);
    }
    float* mine = numbers(rank_);
    for (int i = 1; i < context->num_inputs(); ++i) {
      const Tensor& values = context->input(i);
      mine = std::copy_n(values.flat<float>().data(), values.NumElements(), mine);
    }
    Tell(&Counters::written, step_ + 1);
    TF_RETURN_IF_ERROR(WaitForAll(context, &Counters::written, step_ + 1));
    for (int64_t i = 1, first = 0; i < context->num_inputs(); ++i) {
      const int64_t count = context->input(i).NumElements();
      Tensor* total;
      TF_RETURN_IF_ERROR(context->allocate_output(i - 1, context->input(i).shape(), &total));
      float* to = total->flat<float>().data();
      std::copy_n(numbers(0) + first, count, to);
      for (int rank = 1; rank < ranks_; ++rank) {
        const float* from = numbers(rank) + first;
        for (int64_t c = 0; c < count; ++c) to[c] += from[c];
      }
      first += count;
    }
    ++step_;
    return tensorflow::OkStatus();
  }

 protected:
  int64_t Allot(int64_t offset) override {
    numbers_at_ = offset;
    stride_ = RoundedUp(numbers_ * sizeof(float), kLine);
    return RoundedUp(offset + 2 * ranks_ * stride_, kPage);
  }

 private:
  // A rank's numbers of this step.
  float* numbers(int rank) const { return At(numbers_at_ + (2 * rank + step_ % 2) * stride_); }

  const int64_t numbers_;
  int64_t numbers_at_, stride_;
  uint32_t step_ = 0;
};

// Open a memory according to the operation's attributes.
template <typename Kind>
class Open : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto* memory = new Kind(AttrSlice(def()));
    const Tensor handle(
        tensorflow::ResourceHandle::MakeRefCountingHandle(memory, context->device()->name()));
    OP_REQUIRES_OK(context, memory->Open());
    context->set_output(0, handle);
  }
};

// An operation on a memory, its first input.
template <typename Kind, Status (Kind::*kDo)(OpKernelContext*)>
class OnMemory : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Kind> memory;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &memory));
    OP_REQUIRES_OK(context, (memory.get()->*kDo)(context));
  }
};

}  // namespace

OPERATION("EscalaOpenLayer", Open<Layer>)
    .Output("memory: resource")
    .Attr("path: string").Attr("rank: int >= 0")
    .Attr("sizes: list(int)").Attr("outputs: int >= 1").Attr("capacity: int >= 1")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::ScalarShape);

OPERATION("EscalaOpenSums", Open<Sums>)
    .Output("memory: resource")
    .Attr("path: string").Attr("rank: int >= 0")
    .Attr("ranks: int >= 1").Attr("numbers: int >= 1")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::ScalarShape);

OPERATION("EscalaSumInMemory", OnMemory<Sums, &Sums::Sum>)
    .Input("memory: resource").Input("values: count * float")
    .Output("totals: count * float").Attr("count: int >= 1")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::UnknownShape);

OPERATION("EscalaPlaceKernel", OnMemory<Layer, &Layer::Place>)
    .Input("memory: resource").Input("kernel: resource").Input("local: resource")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

OPERATION("EscalaBeginStep", OnMemory<Layer, &Layer::Begin>)
    .Input("memory: resource").Input("rows: int32")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The kernel is an input, so that TensorFlow orders its later reads after this operation.
OPERATION("EscalaAwaitKernel", OnMemory<Layer, &Layer::Await>)
    .Input("memory: resource").Input("kernel: resource")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The rank's part of the kernel is an input, so that TensorFlow orders every change of this part
// after this operation. An optimizer may change weights without a gradient, for example by weight
// decay.
OPERATION("EscalaExchangeFactors", OnMemory<Layer, &Layer::Exchange>)
    .Input("memory: resource").Input("local: resource")
    .Input("inputs: float").Input("output_gradients: float")
    .Output("local_columns: float").Output("all_output_gradients: float")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::UnknownShape);

OPERATION("EscalaPublishKernel", OnMemory<Layer, &Layer::Publish>)
    .Input("memory: resource").Input("local: resource")
    .SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);
