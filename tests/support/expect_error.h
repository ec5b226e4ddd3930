#pragma once

#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "base/error.h"

namespace duet {

inline void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

// Expects that `call` throws an E whose text holds each of `parts`.
template <class E, class Call>
void expect_error(const Call& call, const std::vector<std::string>& parts = {}) {
  try {
    call();
  } catch (const E& error) {
    return expect_contains(error.what(), parts);
  } catch (const std::exception& error) {
    FAIL() << "another type of error: " << error.what();
  }
  FAIL() << "no error";
}

// The text of the mistake in a config that `call` runs into; empty: none.
template <class Call>
std::string config_error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return {};
}

}  // namespace duet
