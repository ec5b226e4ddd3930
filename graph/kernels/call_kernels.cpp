#include "graph/kernels/call_kernels.h"
#include <string>
#include <utility>
#include <c10/util/StringUtil.h>

namespace duet {

namespace {

MakeCallKernel make_of(const CallKernelMaker& maker) {
  return [&maker](const std::vector<OpCall>& calls) { return maker.make(calls.front()); };
}

bool is_known_bitexact(const CallKernelMaker& maker, const OpCall& call, BitexactKernels& kernels) {
  static Trials<std::string, bool> trials;
  const auto* const make = reinterpret_cast<const void*>(maker.make);
  const bool must_be_faster = maker.must_be_faster && !kernels.may_be_slow;
  return trials.of(kind_of({call}) + c10::str(make, must_be_faster), kernels, [&] {
    return (!must_be_faster || is_faster(make_of(maker), {call}, maker.rules)) &&
           is_bitexact(maker, maker.tried != nullptr ? maker.tried(call) : call);
  });
}

}  // namespace

bool is_bitexact(const CallKernelMaker& maker, const OpCall& like) {
  return is_bitexact(make_of(maker), {like}, maker.rules);
}

void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OpCall& call = calls[i];
    for (const CallKernelMaker& maker : makers) {
      if (kernels.of_call[i].run || !call.is(maker.op, maker.overload)) continue;
      CallKernel kernel = maker.make(call);
      if (!kernel || !is_known_bitexact(maker, call, kernels)) continue;
      kernels.of_call[i] = {[kernel = std::move(kernel), call] {
                              if (!kernel()) call.run_as_aten();
                            },
                            maker.name};
      kernels.of_call[i].elementwise = maker.rules.elementwise;
      if (maker.by_rows != nullptr) kernels.of_call[i].by_rows = maker.by_rows(call);
    }
  }
}

}  // namespace duet
