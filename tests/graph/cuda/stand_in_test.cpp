#include "tests/cuda_stand_in/stand_in.h"
#include <csignal>
#include <functional>
#include <vector>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

// The stand-in for the CUDA runtime keeps the rules of a capture, or no test over it could fail.

namespace duet {
namespace {

namespace cuda = testing::cuda;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CudaStandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda::take_violations();
    for (cudaStream_t* stream : {&stream_, &other_}) {
      ASSERT_EQ(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0), cudaSuccess);
    }
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, 0), cudaSuccess);
  }
  void begin() { ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  cudaError_t end() {
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph_);
    EXPECT_EQ(graph_ == nullptr, error != cudaSuccess);
    EXPECT_FALSE(cuda::is_capturing());
    cudaGetLastError();
    return error;
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

TEST_F(CudaStandIn, AGraphDoesLaterWhatWasCaptured) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  begin();
  EXPECT_EQ(cudaMemsetAsync(memory, 7, 4, stream_), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  const auto first_byte = [&] {
    char value = -1;
    EXPECT_EQ(cudaMemcpy(&value, memory, 1, cudaMemcpyDefault), cudaSuccess);
    return value;
  };
  EXPECT_EQ(first_byte(), 0);
  cudaGraphExec_t program = nullptr;
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&program, graph_, 0), cudaSuccess);
  for (const char value : {1, 2}) {
    EXPECT_EQ(cudaMemset(memory, value, 4), cudaSuccess);
    EXPECT_EQ(first_byte(), value);
    EXPECT_EQ(cudaGraphLaunch(program, other_), cudaSuccess);
    EXPECT_EQ(first_byte(), 7);
  }
  EXPECT_THAT(cuda::take_violations(), IsEmpty());
}

TEST_F(CudaStandIn, WhatWaitsSpoilsACapture) {
  void* memory = nullptr;
  char host[4] = {};
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaStreamSynchronize(stream_); },
      [] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventQuery(event_); },
      [&] { return cudaEventSynchronize(event_); },
      [&] { return cudaMalloc(&memory, 4); },
      [&] { return cudaMemcpy(host, memory, 4, cudaMemcpyDefault); },
      [&] { return cudaMemcpyAsync(host, memory, 4, cudaMemcpyDefault, stream_); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    begin();
    EXPECT_EQ(calls[i](), cudaErrorStreamCaptureUnsupported) << i;
    EXPECT_EQ(cudaMemsetAsync(memory, 0, 4, stream_), cudaErrorStreamCaptureInvalidated) << i;
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated) << i;
    EXPECT_EQ(cuda::take_violations().size(), 1U) << i;
    EXPECT_EQ(calls[i](), cudaSuccess) << i;
  }
}

TEST_F(CudaStandIn, StreamsOfACaptureMustJoinIt) {
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  EXPECT_THAT(cuda::take_violations(), ElementsAre("a stream of the capture is not joined"));
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_, 0), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CudaStandIn, ACaptureNeitherWaitsForOutsideWorkNorIsWaitedFor) {
  ASSERT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event_, 0), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
}

TEST_F(CudaStandIn, TheLegacyStreamIsNotUsedWhileABlockingStreamCaptures) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  begin();
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 4, nullptr), cudaSuccess) << "streams of LibTorch do not block";
  EXPECT_EQ(end(), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamDefault, 0), cudaSuccess);
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaMemsetAsync(memory, 0, 4, nullptr); },
      [&] { return cudaEventRecord(event_, nullptr); },
  };
  for (const auto& call : calls) {
    begin();
    EXPECT_EQ(call(), cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(CudaStandIn, TheHostCannotTouchTheDevicesMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  const ::testing::KilledBySignal faults(SIGSEGV);
  EXPECT_EXIT(EXPECT_EQ(*static_cast<volatile char*>(memory), 0), faults, "the host touches memory of the device");
  EXPECT_EXIT(*static_cast<volatile char*>(memory) = 1, faults, "the host touches memory of the device");
}

TEST_F(CudaStandIn, CountsWhatACaptureLacks) {
  const int64_t before = cuda::outside_launches();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 4, other_), cudaSuccess);
  EXPECT_EQ(cuda::outside_launches(), before);
  begin();
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 4, other_), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cuda::outside_launches(), before + 1);
}

}  // namespace
}  // namespace duet
