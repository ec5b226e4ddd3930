#include "hooks/detail/desktop_viewer.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace duet {

namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

std::string open_on_desktop(const std::string& path) {
  if (!is_set("DISPLAY") && !is_set("WAYLAND_DISPLAY")) return "there is no display";
  // The shell ends at once, so nobody waits for a viewer that stays open, and the viewer outlives this process.
  std::string shell = "sh", flag = "-c", name = "sh", file = path;
  std::string script = "command -v xdg-open >/dev/null || exit 1; xdg-open \"$1\" </dev/null >/dev/null 2>&1 &";
  char* const arguments[] = {shell.data(), flag.data(), script.data(), name.data(), file.data(), nullptr};
  pid_t process = 0;
  if (const int error = ::posix_spawn(&process, "/bin/sh", nullptr, nullptr, arguments, environ); error != 0) {
    return std::string("no process can be started (") + std::strerror(error) + ")";
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  const bool opened = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return opened ? "" : "there is no xdg-open (Debian's package xdg-utils has it)";
}

}  // namespace duet
