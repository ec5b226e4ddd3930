#include "distributed/communicator.h"

namespace duet {

namespace {

class OneProcess : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  bool is_alone() const override { return true; }
  std::vector<std::vector<double>> all_gather(const std::vector<double>& numbers) override { return {numbers}; }
  std::vector<std::string> all_gather(const std::string& bytes) override { return {bytes}; }
  std::string broadcast(const std::string& bytes, int64_t /*root*/) override { return bytes; }
  void report(int64_t /*step*/, const char* /*phase*/) override {}
  void fail(const std::string& /*reason*/) override {}

 protected:
  void do_start_sum(const at::Tensor& /*values*/) override {}
  void do_start_broadcast(const at::Tensor& /*values*/, int64_t /*root*/) override {}
  void do_finish(const at::Tensor& /*values*/) override {}
};

}  // namespace

std::shared_ptr<Communicator> one_process() {
  static const std::shared_ptr<Communicator> alone = std::make_shared<OneProcess>();
  return alone;
}

}  // namespace duet
