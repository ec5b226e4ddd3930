#pragma once

#include <string>
#include <vector>
#include <gtest/gtest.h>

namespace duet {

// Expects that `call` throws an E whose text holds each of `parts`.
template <class E, class Call>
void expect_error(const Call& call, const std::vector<std::string>& parts = {}) {
  try {
    call();
  } catch (const E& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
    return;
  } catch (const std::exception& error) {
    FAIL() << "another type of error: " << error.what();
  }
  FAIL() << "no error";
}

}  // namespace duet
