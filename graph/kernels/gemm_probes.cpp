#include "graph/kernels/gemm_probes.h"
#include <algorithm>
#include <cmath>

// Why the probes are a proof. An element of a product is a binary tree over its k terms (and the bias), which does not
// depend on the numbers. FPRev (Xie, Gao, Wang, Xue, USENIX ATC 2025) reveals an unknown tree with huge numbers M and
// -M among ones: what lies below the first node that holds both is absorbed. Here the tree is a guess that is to be
// confirmed: the numbers are chosen so that it gives the greatest result, and each other tree a smaller one. For a tree
// of blocks (GemmOrder):
//
// 1. Each block is a subtree (clade_line): M first and -M last in the block, ones between them, weights of 1024
//    outside. The result is the sum of all weights outside if and only if the lowest node with both M and -M holds the
//    block's terms, all of them, and no other.
// 2. The sums of blocks form a chain (shape_line): the first one, or the bias, is 2^24, all others are 1 + 2^-10, a
//    little more than half of what that can tell apart. One of them added to the chain rounds up to 2. Several that are
//    added to each other first, c of them, give at most c + 1 and less than 2 c.
// 3. Each block is a chain, of fused multiply-adds (block_lines): the same with terms of 1 + 2^-13 + 2^-28 behind a
//    start in [2^11, 2^12). These end just above the middle of two numbers and are rounded up. A product that is
//    rounded before it is added lies in the middle, which rounds to even: down at one of two starts of different
//    parity. One block in two is tested, the next one holds minus its sum, so that the last bits of all stay visible.
// 4. The chains run from first to last (order_line): the sum comes down from 2^(23 + 2 G) in jumps by 2^2. Between two
//    jumps a term of a little more than half of what the sum can tell apart is added and rounded up to all of it.
//    Earlier, where the sum is larger, the term would be lost; later it would add half. Jumps are exact in any order,
//    and no other set of them leads to the same binade (3 * 2^(21 + 2 i) for a missing jump i is more than all that is
//    below). So each term lies between its two jumps. Windows of 2 G terms, which overlap by one, cover all.
//
// Zeros of both signs and results below the normal numbers have lines of their own; infinities are compared on numbers,
// and NaN are found there (gemm_proof.cpp).

namespace duet {

namespace {

constexpr float kOutside = 1024;  // weight of a term outside of a block: more than all ones inside

struct Terms {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

float power(int exponent) { return std::ldexp(1.0F, exponent); }

std::vector<Terms> blocks_of(const SumShape& shape) {
  std::vector<Terms> blocks;
  for (int64_t k = 0; k < shape.k; k += shape.k_block) blocks.push_back({k, std::min(shape.k, k + shape.k_block)});
  return blocks;
}

using Line = std::vector<float>;

class Builder {
 public:
  explicit Builder(const SumShape& shape) : shape_(shape), blocks_(blocks_of(shape)) {
    for (const Terms& block : blocks_) heads_.push_back(block.begin);
    if (!shape.has_before) heads_.erase(heads_.begin());
    // The greatest sums of all blocks must be exact together.
    constexpr int kFewLevels = 8, kManyLevels = 10;
    constexpr std::size_t kFewBlocks = 11;
    levels_ = blocks_.size() > kFewBlocks ? kFewLevels : kManyLevels;
  }

  bool can_tell() const {
    constexpr int64_t kDeepest = 1000;
    constexpr int64_t kLongest = 16000;
    constexpr std::size_t kMostBlocks = 190;
    return shape_.k <= kLongest && blocks_.size() <= kMostBlocks && std::min(shape_.k, shape_.k_block) <= kDeepest;
  }

  std::vector<GemmProbes> all() const {
    std::vector<GemmProbes> probes;
    const auto add = [&](float other, float before, std::vector<Line> lines) {
      if (!lines.empty()) probes.push_back({other, before, std::move(lines)});
    };
    std::vector<Line> lines = block_order_lines();
    lines.push_back(Line(shape_.k, -0.0F));
    lines.push_back(at_block_ends(power(-149)));
    if (shape_.has_before) {
      add(1, kOutside, clade_lines());
      if (heads_.size() > 1) add(1, power(24), {shape_line()});
      add(1, power(23 + 2 * levels_), head_order_lines());
    } else {
      append(lines, clade_lines());
      if (heads_.size() > 1) lines.push_back(shape_line());
      append(lines, head_order_lines());
    }
    add(1, -0.0F, std::move(lines));
    add(kInexact, -0.0F, block_lines());
    add(power(-100), -0.0F, {at_block_ends(power(-30)), at_block_ends(power(-100)), at_block_ends(-power(-100))});
    return probes;
  }

 private:
  static constexpr float kInexact = 1 + 0x1p-14F;  // its square is 1 + 2^-13 + 2^-28

  static void append(std::vector<Line>& lines, const std::vector<Line>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  }

  Line zeros() const { return Line(shape_.k, 0.0F); }

  // Some CPUs take a hundred times as long for a result below the normal numbers: one in each block is enough.
  Line at_block_ends(float value) const {
    Line line = zeros();
    for (const Terms& block : blocks_) line[block.end - 1] = value;
    return line;
  }

  std::vector<Line> clade_lines() const {
    std::vector<Line> lines;
    if (blocks_.size() == 1 && !shape_.has_before) return lines;
    for (const Terms& block : blocks_) {
      if (block.size() > 1) lines.push_back(clade_line(block));
    }
    return lines;
  }

  Line clade_line(const Terms& block) const {
    Line line(shape_.k, kOutside);
    std::fill(line.begin() + block.begin, line.begin() + block.end, 1.0F);
    line[block.begin] = power(100);
    line[block.end - 1] = -power(100);
    return line;
  }

  Line shape_line() const {
    Line line = zeros();
    if (!shape_.has_before) line[0] = power(24);
    for (const int64_t head : heads_) line[head] = 1 + power(-10);
    return line;
  }

  std::vector<Line> head_order_lines() const {
    std::vector<Line> lines;
    for (int64_t window = 0; window < windows(heads_.size()); ++window) {
      lines.push_back(zeros());
      if (!shape_.has_before) lines.back()[0] = power(23 + 2 * levels_);
      put_window(lines.back(), heads_, window);
    }
    return lines;
  }

  std::vector<Line> block_order_lines() const {
    std::vector<Line> lines(windows(static_cast<std::size_t>(blocks_.front().size() - 1)), zeros());
    for (const Terms& block : blocks_) {
      std::vector<int64_t> terms;
      for (int64_t k = block.begin + 1; k < block.end; ++k) terms.push_back(k);
      for (int64_t window = 0; window < windows(terms.size()); ++window) {
        lines[window][block.begin] = power(23 + 2 * levels_);
        put_window(lines[window], terms, window);
      }
    }
    return lines;
  }

  int64_t windows(std::size_t terms) const {
    const int64_t step = 2 * levels_ - 1;
    return terms < 2 ? 0 : (static_cast<int64_t>(terms) - 1 + step - 1) / step;
  }

  // Jumps and the terms between them, at these positions of the line.
  void put_window(Line& line, const std::vector<int64_t>& positions, int64_t window) const {
    const auto count = static_cast<int64_t>(positions.size());
    const int64_t begin = std::min(window * (2 * levels_ - 1), std::max<int64_t>(0, count - 2 * levels_));
    const int64_t end = std::min(count, begin + 2 * levels_);
    int level = levels_;
    for (int64_t i = begin; i < end; ++i) {
      const bool is_last = i + 1 == end;
      const bool is_jump = (end - i) % 2 == 1;
      const float jump = is_last ? power(23 + 2 * level) : 3 * power(21 + 2 * level);
      line[positions[i]] = is_jump ? -jump : power(2 * level - 1) * (1 + power(-20));
      if (is_jump) --level;
    }
  }

  std::vector<Line> block_lines() const {
    std::vector<Line> lines;
    if (blocks_.front().size() < 2) return lines;
    for (const float start : {power(11), power(11) + power(-12)}) {
      lines.push_back(block_line(start, 0));
      if (blocks_.size() > 1) lines.push_back(block_line(start, 1));
    }
    return lines;
  }

  // Every second block from `first` on is tested.
  Line block_line(float start, std::size_t first) const {
    Line line = zeros();
    for (std::size_t i = first; i < blocks_.size(); i += 2) {
      const Terms& block = blocks_[i];
      std::fill(line.begin() + block.begin, line.begin() + block.end, kInexact);
      line[block.begin] = start;
      float sum = 0;
      for (int64_t k = block.begin; k < block.end; ++k) sum = std::fma(line[k], kInexact, sum);
      if (i + 1 < blocks_.size()) line[blocks_[i + 1].begin] = -sum / kInexact;
    }
    return line;
  }

  SumShape shape_;
  std::vector<Terms> blocks_;
  std::vector<int64_t> heads_;  // first terms of the blocks that are added to the start
  int levels_;
};

}  // namespace

std::vector<GemmProbes> gemm_probes(const SumShape& shape) {
  const Builder builder(shape);
  return builder.can_tell() ? builder.all() : std::vector<GemmProbes>();
}

float expected_sum(const GemmProbes& probes, const std::vector<float>& line, const SumShape& shape,
                   const GemmOrder& order) {
  float sum = shape.has_before ? probes.before : 0.0F;
  bool is_start = !shape.has_before && !order.from_zero;
  for (const Terms& block : blocks_of(shape)) {
    float part = 0;
    for (int64_t k = block.begin; k < block.end; ++k) part = std::fma(line[k], probes.other, part);
    sum = is_start ? part : sum + part;
    is_start = false;
  }
  return sum;
}

}  // namespace duet
