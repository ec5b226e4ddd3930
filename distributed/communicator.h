#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

// The processes that train one model together, as one of them sees them. Each has a rank in [0, world_size). All make
// the same calls in the same order.
//
// What waits for others throws PeerError when one of them is lost, has failed, or does not answer in time; then this
// communicator is at its end.
class Communicator {
 public:
  Communicator();
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  bool is_main() const { return rank() == 0; }
  // Whether there is nobody to sum with, agree with or wait for: see one_process().
  virtual bool is_single() const { return false; }
  // What the tensors of sums and broadcasts lie on.
  virtual at::Device device() const { return at::kCPU; }

  // On the host, between steps: what every rank gave, by rank. The numbers are equally many everywhere.
  virtual std::vector<std::vector<double>> all_gather(const std::vector<double>& numbers) = 0;
  virtual std::vector<std::string> all_gather(const std::string& bytes) = 0;
  // The report of each rank, by rank. One exchange for reports of up to 56 bytes, two for larger ones.
  template <class Report>
  std::vector<Report> gather(const Report& report);
  // What rank `root` gave.
  virtual std::string broadcast(const std::string& bytes, int64_t root) = 0;
  std::string broadcast(const std::string& bytes) { return broadcast(bytes, 0); }
  void barrier() { all_gather(std::vector<double>{0}); }

  // On tensors, contiguous and on the device that trains: starts to replace the values by their sum over the ranks, or
  // by those of rank `root`, and returns. finish() waits for it (on a GPU, the current stream does); until then nobody
  // touches the values. Several may be on their way; all ranks start them in the same order.
  void start_sum(const at::Tensor& values);
  void start_broadcast(const at::Tensor& values, int64_t root);
  void finish(const at::Tensor& values);

  // Bytes of all sums and broadcasts started so far, this rank's contribution.
  int64_t bytes_started() const { return bytes_started_; }

  // What this process does now, for the others' message if they lose it. `phase` is a literal.
  virtual void report(int64_t step, const char* phase) = 0;
  // The same within the step that was reported last.
  virtual void report(const char* /*phase*/) {}
  // Whether nothing waits longer than the timeout of a running training, or as long as that of a start.
  virtual void set_running(bool /*running*/) {}
  // Until it is called with `false` again the longer one holds: somebody may be at work that the others do not see.
  virtual void set_patient(bool /*patient*/) {}
  // Rank 0 says that it does something that the others wait for, such as writing a checkpoint: as long as it lives,
  // those who are patient wait for it, however long it takes. Over with its next call here that waits for others.
  virtual void main_works() {}
  // Tells the others that this process ends with an error, and why. Every later call here throws PeerError.
  virtual void fail(const std::string& reason) = 0;

  // To run one step several times and compare: after keep() its sums and broadcasts are kept; after repeat() they are
  // given out again in the same order, and nothing goes to the others; after live() all is as usual.
  void keep();
  void repeat();
  void live();
  // Whether every contribution since repeat() had the bits of the kept one.
  bool repeated_exactly() const { return repeated_exactly_; }

  // A number that tensor operators name this communicator by (collective_ops.h).
  int64_t id() const { return id_; }
  // Throws ConfigError if there is none of this number any more.
  static Communicator& find(int64_t id);

 protected:
  virtual void do_start_sum(const at::Tensor& values) = 0;
  virtual void do_start_broadcast(const at::Tensor& values, int64_t root) = 0;
  virtual void do_finish(const at::Tensor& values) = 0;

 private:
  enum class Mode { kLive, kKeep, kRepeat };
  struct Kept {
    at::Tensor given, taken;
  };
  template <class Start>
  void start(const at::Tensor& values, Start start);

  int64_t id_;
  int64_t bytes_started_ = 0;
  Mode mode_ = Mode::kLive;
  std::vector<Kept> kept_;
  std::size_t repeated_ = 0;  // started since repeat()
  bool repeated_exactly_ = true;
  std::vector<std::pair<const void*, std::size_t>> open_;  // memory of what is on its way, and its place in kept_
};

template <class Report>
std::vector<Report> Communicator::gather(const Report& report) {
  static_assert(std::is_trivially_copyable_v<Report>, "what is gathered is copied byte by byte");
  std::vector<double> words((sizeof(Report) + sizeof(double) - 1) / sizeof(double));
  std::memcpy(words.data(), &report, sizeof(Report));
  const std::vector<std::vector<double>> rows = all_gather(words);
  std::vector<Report> all(rows.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    std::memcpy(static_cast<void*>(&all[rank]), rows[rank].data(), sizeof(Report));
  return all;
}

// A world of one: gathers give what they got, and all else does nothing.
std::shared_ptr<Communicator> one_process();

// Runs `call` on every rank and waits for all. If it throws on some, it throws on all: there its own error, elsewhere
// one of the same type that names the first such rank.
void run_on_all_ranks(Communicator& ranks, const std::function<void()>& call);

// Runs `call` on rank 0 alone; the others wait, and learn of its error.
void run_on_main(Communicator& ranks, const std::function<void()>& call);

}  // namespace duet
