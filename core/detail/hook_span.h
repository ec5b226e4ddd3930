#pragma once

namespace duet {

// Ends the profiler's span of the hook point that runs now in this thread, "hook:<name>:<point>"; the rest of that call
// lies outside of it. For a hook that begins or ends a span of its own there which outlives the call, as spans of one
// thread must lie within or beside each other. Nothing happens outside of a hook point. Private to duet.
void end_hook_span();

}  // namespace duet
