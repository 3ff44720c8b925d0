# An exercise of docs/course in PyTorch, made from that in TensorFlow:
#   sed -f experiments/course/torch.sed experiments/course/course-amdahl.yaml > experiments/course/course-amdahl-torch.yaml
s/^experiment: .*/&-torch/
s/strategy: single,/strategy: torch-single,/
s/strategy: horovod-mpi,/strategy: ddp-gloo,/
s/strategy: hybrid,/strategy: ddp-hybrid,/
# Exercise 6: PyTorch's profiler in place of Horovod's timeline.
s/^timeline: {enabled: true/torch-trace: {enabled: true/
# Exercise 3: a step of PyTorch has no lookups, and few rows are fewer.
/^    convolution: /d
/^    optimizer: fused/d
s/rows: 32, per: global/rows: 8, per: global/
s/<<: \*fast, batch: {rows: 64,/<<: *fast, batch: {rows: 16,/
s/<<: \*fast, batch: {rows: 256,/<<: *fast, batch: {rows: 128,/
