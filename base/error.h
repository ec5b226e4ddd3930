#pragma once

#include <stdexcept>
#include <string>

namespace duet {

// Every error that duet throws on purpose. Its text reads "[Where] found ..., expected ...; do ...", and what names
// from files would do to a terminal is escaped in it. exit_code() is what the `duet` program returns for it.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, int exit_code);
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// An option, a config key or a call that cannot work: the user changes the set-up.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(message, 2) {}
};

// The model or its loss failed on a batch: shapes, dtypes or values that do not fit each other.
class StepError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// A file or a batch that cannot be used: the user changes the data.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message);  // one line: line ends in what it quotes are escaped
};

// A checkpoint that cannot be written, is damaged, or belongs to another model.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message) : Error(message, 4) {}
};

// A hook found at before_save_checkpoint that the state is not worth saving. CheckpointHook then leaves the checkpoints
// there are as they are, and the run goes on; BaseTrainer::save() throws it.
class SaveRefused : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Another process of the group is lost, has failed, or does not answer: nothing is wrong with this one, and a restart
// of all goes on from the last checkpoint.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(message, 6) {}
};

// A step that cannot be captured or whose replay stopped being the same as its eager run.
class GraphError : public Error {
 public:
  explicit GraphError(const std::string& message) : Error(message, 1) {}
};

// The loss or a gradient became infinite or NaN, or no step changes anything any more for that reason, and the run was
// told to end then.
class NonFiniteError : public Error {
 public:
  explicit NonFiniteError(const std::string& message) : Error(message, 5) {}
};

// Throws E(message) unless the condition holds. Build costly messages behind an `if` instead.
template <class E>
void require(bool condition, const std::string& message) {
  if (!condition) throw E(message);
}

}  // namespace duet
