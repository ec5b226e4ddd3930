#include "cli/libtorch_log.h"
#include <cstdlib>
#include <string>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include "base/log.h"

namespace duet {

namespace {

constexpr int kErrors = 2;  // glog's number

class IntoOurLog : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    log_warning("[LibTorch] " + warning.msg().substr(0, warning.msg().find('\n')));
  }
};

}  // namespace

void quiet_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();  // a C++ program would not look at it
    return;
  }
  FLAGS_caffe2_log_level = kErrors;
  static auto* const handler = new IntoOurLog();  // outlives the threads that may warn
  c10::WarningUtils::set_warning_handler(handler);
}

}  // namespace duet
