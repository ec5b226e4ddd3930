#include "tests/checkpoint/system_calls.h"
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

std::atomic<int> calls_before_fault{-1};  // -1: no fault is planned
std::atomic<int> fault_kind{0};           // an errno, kKill or kFlipBit
std::atomic<int> lock_error{0};

struct Hold {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> active{false};
  std::thread::id owner;
  int threads = 0;
};

Hold& hold() {
  static Hold only;
  return only;
}

void wait_while_held() {
  Hold& held = hold();
  if (!held.active) return;
  std::unique_lock lock(held.mutex);
  if (!held.active || held.owner == std::this_thread::get_id()) return;
  ++held.threads;
  held.changed.notify_all();
  held.changed.wait(lock, [&] { return !held.active; });
  --held.threads;
}

bool is_due() { return calls_before_fault >= 0 && calls_before_fault-- == 0; }

bool fault_now() {
  wait_while_held();
  const int kind = fault_kind;
  if (kind == duet::testing::kFlipBit || !is_due()) return false;
  if (kind == duet::testing::kKill) ::kill(::getpid(), SIGKILL);
  errno = kind;
  return true;
}

}  // namespace

// These stand before the C library's own in the test program, so that a save can be stopped at each of its calls.
extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  if (fault_now()) return -1;
  if (fault_kind == duet::testing::kFlipBit && bytes > 0 && is_due()) {
    std::string changed(static_cast<const char*>(data), bytes);
    changed[bytes / 2] ^= 1;
    return ::syscall(SYS_write, fd, changed.data(), bytes);
  }
  return ::syscall(SYS_write, fd, data, bytes);
}
int fsync(int fd) { return fault_now() ? -1 : static_cast<int>(::syscall(SYS_fsync, fd)); }
int mkdir(const char* path, mode_t mode) noexcept {
  return fault_now() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  return fault_now() ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) noexcept {
  return fault_now() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int remove(const char* path) noexcept {
  if (fault_now()) return -1;
  const bool removed = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0 || (errno == EISDIR && ::rmdir(path) == 0);
  return removed ? 0 : -1;
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (fault_now()) return errno;
  return ::syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
int flock(int fd, int operation) noexcept {
  if (lock_error == 0) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = lock_error;
  return -1;
}
}

namespace duet::testing {

PlannedFault::PlannedFault(int calls, int kind) {
  fault_kind = kind;
  calls_before_fault = calls;
}

PlannedFault::~PlannedFault() { calls_before_fault = -1; }

bool PlannedFault::happened() const { return calls_before_fault < 0; }

NoLocks::NoLocks(int error) { lock_error = error; }

NoLocks::~NoLocks() { lock_error = 0; }

HeldCalls::HeldCalls() {
  const std::lock_guard lock(hold().mutex);
  hold().owner = std::this_thread::get_id();
  hold().active = true;
}

bool HeldCalls::wait_for(int threads, std::chrono::milliseconds at_most) {
  std::unique_lock lock(hold().mutex);
  return hold().changed.wait_for(lock, at_most, [&] { return hold().threads >= threads; });
}

void HeldCalls::let_go() {
  const std::lock_guard lock(hold().mutex);
  hold().active = false;
  hold().changed.notify_all();
}

int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace duet::testing
