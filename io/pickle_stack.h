#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include "io/malformed.h"
#include "io/pickle.h"

// Private to pickle_read.cpp.
namespace duet::pickle {

[[noreturn]] inline void refuse(const std::string& what) { throw MalformedFile{what}; }

// The values that a pickle has made so far, and the stack of those that it works on. Nothing is taken from below the
// last mark.
class Stack {
 protected:
  explicit Stack(size_t pickle_bytes) : budget_(4 * pickle_bytes + (size_t{1} << 20)) {}

  Tree finish(Id root) {
    tree_.root = root;
    return std::move(tree_);
  }

  // A pickle may copy a value that it keeps again and again: what comes of it must stay in proportion to its size.
  void charge(size_t bytes) {
    if (bytes > budget_) refuse("its pickle unfolds to far more than its size");
    budget_ -= bytes;
  }

  bool push(Value value) {
    if (tree_.values.size() >= kMaxValues) refuse(c10::str("its pickle holds more than ", kMaxValues, " values"));
    charge(value.text.size() + value.items.size() * sizeof(Id));
    tree_.values.push_back(std::move(value));
    stack_.push_back(static_cast<Id>(tree_.values.size() - 1));
    return true;
  }
  bool push(Kind kind, int64_t integer) { return push(Value{.kind = kind, .integer = integer}); }
  bool push(Kind kind, std::string_view text) { return push(Value{.kind = kind, .text = std::string(text)}); }
  bool push(Kind kind, std::vector<Id> items) { return push(Value{.kind = kind, .items = std::move(items)}); }
  bool push_again(Id id) {
    stack_.push_back(id);
    return true;
  }

  Id pop() {
    if (stack_.size() <= floor()) refuse("its pickle takes more than it has");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) refuse("its pickle takes more than it has");
    return stack_.back();
  }
  bool mark() {
    marks_.push_back(stack_.size());
    return true;
  }

  std::vector<Id> pop_many(size_t count) {
    if (stack_.size() - floor() < count) refuse("its pickle takes more than it has");
    std::vector<Id> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) refuse("its pickle takes more than it has");
    std::vector<Id> items = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }

  Value& at(Id id) { return tree_.values[id]; }
  size_t budget() const { return budget_; }

 private:
  static constexpr size_t kMaxValues = 10'000'000;

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  size_t budget_;  // bytes that values may still take
  Tree tree_;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
};

}  // namespace duet::pickle
