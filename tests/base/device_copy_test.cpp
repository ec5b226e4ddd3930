#include <algorithm>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "core/detail/micro_batch_reader.h"

// The order of a copy on a stream of its own. The meta device, whose tensors hold no memory, stands in for a GPU: a
// guard written here gives it streams and events that only write down what is asked of them.

namespace duet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr c10::DeviceType kMeta = c10::DeviceType::Meta;
const c10::Device kDevice(kMeta);  // has no index

std::vector<std::string> calls;
c10::StreamId current = 1;

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

std::string name_of(const c10::Stream& stream) { return "stream " + std::to_string(stream.id()); }

struct StreamsForMeta : c10::impl::NoOpDeviceGuardImpl<kMeta> {
  c10::Stream getStream(c10::Device) const noexcept override { return stream_of(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    calls.emplace_back("take stream 2");
    return stream_of(2);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    calls.push_back("switch to " + name_of(stream));
    return stream_of(std::exchange(current, stream.id()));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) calls.emplace_back("make an event");
    *event = &calls;
    calls.push_back("record in " + name_of(stream));
  }
  void block(void*, const c10::Stream& stream) const override { calls.push_back(name_of(stream) + " waits"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& stream) const override {
    calls.push_back("memory used by " + name_of(stream));
  }
};

// The guard in place while this lives.
class WithStreams {
 public:
  WithStreams() : before_(c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kMeta)].load()) {
    static const auto* const guard = new StreamsForMeta;  // LibTorch's guards are never destroyed
    c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kMeta)].store(guard);
    calls.clear();
    current = 1;
  }
  ~WithStreams() { c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kMeta)].store(before_); }
  WithStreams(const WithStreams&) = delete;
  WithStreams& operator=(const WithStreams&) = delete;

 private:
  const c10::impl::DeviceGuardImplInterface* before_;
};

Batch moved_by(DeviceCopy& copy, const Batch& batch) { return copy.to_device({batch}).front(); }

TEST(DeviceCopy, CopiesOnAStreamOfItsOwnAndLetsTheCurrentOneWait) {
  const WithStreams streams;
  DeviceCopy copy(kDevice);
  EXPECT_THAT(calls, IsEmpty());
  const Batch moved = moved_by(copy, {{"image", at::ones({2, 3})}, {"target", at::ones({2}, at::kLong)}});
  EXPECT_THAT(
      calls, ElementsAre("take stream 2", "switch to stream 2", "switch to stream 1", "make an event",
                         "record in stream 2", "stream 1 waits", "memory used by stream 1", "memory used by stream 1"));
  ASSERT_EQ(moved.items().size(), 2U);
  EXPECT_EQ(moved.items()[0].first, "image");
  EXPECT_EQ(moved["image"].device().type(), kMeta);
  EXPECT_EQ(moved["target"].scalar_type(), at::kLong);
  calls.clear();
  current = 5;  // the caller is elsewhere by now
  moved_by(copy, {{"image", at::ones({1})}});
  EXPECT_THAT(calls, ElementsAre("switch to stream 2", "switch to stream 5", "record in stream 2", "stream 5 waits",
                                 "memory used by stream 5"));
}

TEST(DeviceCopy, TheMicroBatchesOfAStepAreWaitedForOnce) {
  const WithStreams streams;
  DeviceCopy copy(kDevice);
  const std::vector<Batch> host(3, Batch{{"x", at::ones({2})}});
  for (int step = 0; step < 2; ++step) EXPECT_EQ(copy.to_device(host).size(), 3U);
  const auto times = [](const std::string& call) { return std::count(calls.begin(), calls.end(), call); };
  EXPECT_EQ(times("stream 1 waits"), 2);
  EXPECT_EQ(times("record in stream 2"), 2);
  EXPECT_EQ(times("make an event"), 1);
  EXPECT_EQ(times("memory used by stream 1"), 6);
}

TEST(DeviceCopy, LeavesWhatIsOnTheDevice) {
  const WithStreams streams;
  DeviceCopy copy(kDevice);
  const at::Tensor there = at::ones({2}, at::TensorOptions().device(kDevice));
  EXPECT_TRUE(moved_by(copy, {{"x", there}})["x"].is_same(there));
  EXPECT_THAT(calls, IsEmpty());
  const Batch mixed = moved_by(copy, {{"x", there}, {"y", at::ones({3})}});
  EXPECT_TRUE(mixed["x"].is_same(there));
  EXPECT_EQ(mixed.items()[1].first, "y");
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "memory used by stream 1"), 1);
}

TEST(DeviceCopy, DoesNothingOnTheCpu) {
  DeviceCopy copy(at::kCPU);
  const Batch batch = {{"x", at::ones({2})}};
  EXPECT_TRUE(moved_by(copy, batch)["x"].is_same(batch["x"]));
}

}  // namespace
}  // namespace duet
