#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "graph/cuda/cuda_replay.h"
#include "graph/detail/capture_method.h"
#include "graph/record/program_writer.h"
#include "graph/replay/cpu_program.h"

// A device that captures on the CPU: between begin and end it writes down what is launched, and afterwards everything
// is as if nothing had run.

namespace duet::testing {

// What the fakes share: the tensors that a capture must leave alone, the calls that were made, and when to fail.
struct FakeLog {
  TrainStep* step = nullptr;
  const at::Tensor* outside = nullptr;  // a tensor of a hook that the step changes
  std::vector<std::string> calls;
  bool on_stream = false;
  bool capturing = false;
  std::function<void()> after_replay;  // spoils what a graph has done
  std::string fail_at;                 // "begin", "end", "replay" or an op ...
  int fail_countdown = 0;              // ... and how many of these still succeed

  void add(const std::string& call) {
    EXPECT_TRUE(on_stream || call.rfind("destroy", 0) == 0) << call << " outside CaptureDevice::run";
    calls.push_back(call);
  }
  void fail_if_due(const std::string& call) {
    if (call == fail_at && fail_countdown-- == 0)
      throw std::runtime_error("the fake refuses to " + call + "\nand more");
  }
  int count(const std::string& call) const { return static_cast<int>(std::count(calls.begin(), calls.end(), call)); }
};

class FakeBackend : public CaptureBackend {
 public:
  explicit FakeBackend(std::shared_ptr<FakeLog> log) : log_(std::move(log)) {}
  ~FakeBackend() override { log_->calls.push_back("destroy backend"); }

  void begin(const std::vector<at::Generator>& /*generators*/) override {
    log_->add("begin");
    EXPECT_FALSE(log_->capturing) << "a capture within a capture";
    log_->fail_if_due("begin");
    log_->capturing = true;
    live_ = log_->step->parameters();
    for (auto& item : log_->step->mutable_state()) live_.push_back(std::move(item));
    if (log_->outside != nullptr && log_->outside->defined()) live_.emplace_back("outside", *log_->outside);
    before_.clear();
    for (const auto& [name, tensor] : live_) before_.emplace_back(name, tensor.detach().clone());
    random_before_ = random_state();
    recorder_ = std::make_unique<ProgramWriter>(NamedTensors{}, /*strict=*/false);
    same_memory_.clear();
  }

  void run_op(const c10::OperatorHandle& op, torch::jit::Stack& stack, const std::function<void()>& run) override {
    EXPECT_TRUE(log_->capturing);
    log_->fail_if_due(op.schema().name());
    ProgramWriter::Call call = recorder_->before(op, stack);
    let_go_of_inputs();
    run();
    recorder_->after(std::move(call), stack);
    let_go_of_inputs();
  }

  void end() override {
    log_->add("end");
    EXPECT_TRUE(log_->capturing) << "end without begin";
    recorder_->note_end();
    std::vector<at::Tensor> results;  // whatever somebody still holds
    const auto program = std::make_shared<StepProgram>(recorder_->program());
    ValueTable& table = program->table;
    for (const ValueTable::Value& value : table.values()) {
      ValueTable::Storage& storage = table.storage(value.storage);
      const auto alive = storage.external ? c10::intrusive_ptr<c10::StorageImpl>() : storage.weak->lock();
      if (!alive) continue;
      storage.strong = c10::Storage(alive);  // a device graph writes to the addresses it was captured with
      storage.external = true;
      results.push_back(tensor_at(storage.strong, value));
    }
    programs_.emplace_back(bitexact_passes()).build(program, results);
    EXPECT_TRUE(recorder_->failure().empty()) << recorder_->failure();
    leave();
    log_->fail_if_due("end");
  }

  void abort() noexcept override {
    log_->add("abort");
    if (log_->capturing) leave();
    programs_.clear();
  }

  void replay(std::size_t graph) override {
    log_->add("replay " + std::to_string(graph));
    EXPECT_FALSE(log_->capturing);
    ASSERT_LT(graph, programs_.size());
    log_->fail_if_due("replay");
    programs_[graph].run(0);
    if (log_->after_replay) log_->after_replay();
  }

  int64_t bytes() const override {
    int64_t total = 0;
    for (const CpuProgram& program : programs_) total += program.bytes();
    return total;
  }

 private:
  // A device knows addresses alone: who refers to what the host code was lent would look like somebody that keeps it.
  void let_go_of_inputs() {
    ValueTable& table = const_cast<StepProgram&>(recorder_->program()).table;
    for (std::size_t s = 0; s < table.storages().size(); ++s) {
      const ValueTable::Storage& storage = table.storages()[s];
      const bool stays = std::any_of(live_.begin(), live_.end(), [&](const auto& item) {
        return item.second.storage().unsafeGetStorageImpl() == storage.strong.unsafeGetStorageImpl();
      });
      if (!storage.external || storage.contents || stays) continue;
      c10::Storage& same_memory = same_memory_[s];
      if (!same_memory) {
        same_memory = c10::Storage(c10::Storage::use_byte_size_t(), storage.bytes,
                                   at::DataPtr(storage.strong.mutable_data(), storage.device), nullptr, false);
      }
      table.move_external(static_cast<int>(s), same_memory);
    }
  }
  void leave() {
    recorder_.reset();
    log_->capturing = false;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < live_.size(); ++i) live_[i].second.detach().copy_(before_[i].second);
    set_random_state(random_before_);
  }

  std::shared_ptr<FakeLog> log_;
  NamedTensors live_, before_;
  std::map<std::size_t, c10::Storage> same_memory_;  // by storage of the recorder
  StateDict random_before_;
  std::unique_ptr<ProgramWriter> recorder_;
  std::vector<CpuProgram> programs_;
};

class FakeDevice : public CaptureDevice {
 public:
  explicit FakeDevice(std::shared_ptr<FakeLog> log) : log_(std::move(log)) {}
  ~FakeDevice() override { log_->calls.push_back("destroy device"); }
  std::unique_ptr<CaptureBackend> new_backend() override { return std::make_unique<FakeBackend>(log_); }
  void on_stream(const std::function<void()>& work) override {
    const bool was = std::exchange(log_->on_stream, true);
    work();
    log_->on_stream = was;
  }
  void run(const std::function<void()>& step) override { on_stream(step); }

 private:
  std::shared_ptr<FakeLog> log_;
};

inline CaptureMethod fake_method(const std::shared_ptr<FakeLog>& log) {
  const std::shared_ptr<CaptureDevice> device = std::make_shared<FakeDevice>(log);
  CaptureDevice* raw = device.get();  // the method owns the device
  return {3, [raw] { return std::make_unique<CudaReplay>(raw->new_backend()); }, device};
}

}  // namespace duet::testing
