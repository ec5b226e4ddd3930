// Preloaded into the program: serves forks of it, and stands between it and the system.
//
// TORTURE_SERVER=FD   the program does not start: for every request on that socket a child of it does, with the words,
//                     variables, folder and files of the request. What takes a second at a start is done once.
// TORTURE_UNDER=PATH  calls on what lies below PATH count, and nothing else
// TORTURE_STATE=FILE  holds the number of calls so far (8 bytes), the faults made (8), and large allocations (8)
// TORTURE_FAULT=N:WHAT[:COUNT]  the N-th of them (from 0), and COUNT - 1 after it, fail with errno WHAT; before it the
//                     process gets the signal -WHAT where that is negative
// TORTURE_LOG=FILE    what they did, for replay.py
// TORTURE_ALLOC=N:BYTES[:COUNT] the N-th allocation of at least BYTES, and COUNT - 1 after it, fail
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_memalign(size_t alignment, size_t bytes);

namespace {

struct State {
  std::atomic<int64_t> calls, faults, allocations;
};

// No fault is planned: n is past every call.
struct Plan {
  int64_t n = INT64_MAX;
  int64_t what = 0, count = 1;  // an errno, or a signal below zero; bytes, for allocations
};

State own_state;
State* state = &own_state;
Plan fault, allocation_fault;
char under[4096];
int log_file = -1;
constexpr int kFiles = 4096;
std::atomic<bool> watched[kFiles];  // descriptors of what lies below `under`

Plan plan_of(const char* name) {
  const char* text = std::getenv(name);
  long long n = 0, what = 0, count = 1;
  if (text == nullptr || std::sscanf(text, "%lld:%lld:%lld", &n, &what, &count) < 2) return {};
  return {n, what, count};
}

bool is_due(const Plan& plan, int64_t n) { return n >= plan.n && n - plan.n < plan.count; }

// Reads the variables. Again in every child of the server.
void set_up() {
  state = &own_state;
  if (const char* path = std::getenv("TORTURE_STATE")) {
    const int file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file < 0 || ::syscall(SYS_ftruncate, file, sizeof(State)) != 0) ::_exit(99);
    void* const shared = ::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) ::_exit(99);
    state = static_cast<State*>(shared);
    ::syscall(SYS_close, file);
  }
  fault = plan_of("TORTURE_FAULT");
  allocation_fault = plan_of("TORTURE_ALLOC");
  under[0] = 0;
  if (const char* path = std::getenv("TORTURE_UNDER")) std::snprintf(under, sizeof under, "%s", path);
  if (const char* path = std::getenv("TORTURE_LOG")) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    log_file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, 0666));
  }
}

[[gnu::constructor]] void at_load() {
  if (std::getenv("TORTURE_SERVER") == nullptr) set_up();
}

bool is_under(const char* path) {
  if (under[0] == 0 || path == nullptr) return false;
  const size_t length = std::strlen(under);
  return std::strncmp(path, under, length) == 0 && (path[length] == 0 || path[length] == '/');
}

bool is_watched(int file) { return file >= 0 && file < kFiles && watched[file]; }

// Whether this call is to fail; errno is set then.
bool fails() {
  const int64_t n = state->calls++;
  if (!is_due(fault, n)) return false;
  ++state->faults;
  if (fault.what < 0) {
    ::kill(::getpid(), static_cast<int>(-fault.what));
    return false;
  }
  errno = static_cast<int>(fault.what);
  return true;
}

struct Record {
  const char* op = "";
  uint64_t inode = 0;  // of the file or folder, where it has no path
  int64_t number = 0;  // a place, a size, or whether it was emptied
  const char* first = "";
  const char* second = "";
  std::string_view data{};
};

// "op\tinode\tnumber\tpath\tpath\tbytes\n", then the bytes.
void log(const Record& record) {
  if (log_file < 0) return;
  const int saved = errno;
  std::ostringstream line;
  line << record.op << '\t' << record.inode << '\t' << record.number << '\t' << record.first << '\t' << record.second
       << '\t' << record.data.size() << '\n'
       << record.data;
  const std::string text = line.str();
  if (::syscall(SYS_write, log_file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::_exit(98);
  errno = saved;
}

uint64_t inode_of(int file) {
  struct stat status{};
  return log_file >= 0 && ::fstat(file, &status) == 0 ? status.st_ino : 0;
}

int opened(const char* path, int flags, mode_t mode) {
  if (!is_under(path)) return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (fails()) return -1;
  const int file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (file < 0) return file;
  if (file < kFiles) watched[file] = true;
  if (flags & (O_CREAT | O_TRUNC))
    log({.op = "create", .inode = inode_of(file), .number = (flags & O_TRUNC) != 0, .first = path});
  return file;
}

// A call on names, which counts where one of them lies below `under`.
template <class Call>
int on_path(Record record, const Call& call) {
  const bool counts = is_under(record.first) || is_under(record.second);
  if (counts && fails()) return -1;
  const int result = static_cast<int>(call());
  struct stat status{};
  if (counts && result == 0) {
    if (log_file >= 0 && ::stat(record.first, &status) == 0) record.inode = status.st_ino;
    log(record);
  }
  return result;
}

// The same of an open file.
template <class Call>
int on_file(int file, const Record& record, const Call& call) {
  if (is_watched(file)) {
    if (fails()) return -1;
    log(record);
  }
  return static_cast<int>(call());
}

int (*program_main)(int, char**, char**) = nullptr;
// LibTorch's destructors write to all the memory that a fork shares, which costs twenty times what the rest does: every
// sixteenth child runs them.
bool ends_fully = true;

// The child of a request: "folder\0NAME=VALUE\0...\0\0word\0word\0...".
[[noreturn]] void become(std::vector<char>& request, const int files[2], int socket, char* name) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(socket);
  ::dup2(files[0], 1);
  ::dup2(files[1], 2);
  ::close(files[0]);
  ::close(files[1]);
  char* text = request.data();
  char* const end = text + request.size();
  if (::chdir(text) != 0) ::_exit(99);
  ::unsetenv("TORTURE_SERVER");
  for (text += std::strlen(text) + 1; *text != 0; text += std::strlen(text) + 1) ::putenv(text);
  std::vector<char*> words = {name};
  for (++text; text < end; text += std::strlen(text) + 1) words.push_back(text);
  words.push_back(nullptr);
  set_up();
  const int code = program_main(static_cast<int>(words.size()) - 1, words.data(), environ);
  if (ends_fully) std::exit(code);
  std::fflush(nullptr);
  ::_exit(code);
}

// A request is answered with the number of the process, and with its status once it has ended.
int serve(int socket, char* name) {
  for (int served = 0;; ++served) {
    ends_fully = served % 16 == 0;
    std::vector<char> request(1 << 17);
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    iovec part = {request.data(), request.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (got <= 0 || header == nullptr) return 0;
    request.resize(static_cast<size_t>(got));
    int files[2];
    std::memcpy(files, CMSG_DATA(header), sizeof files);
    const pid_t child = ::fork();
    if (child == 0) become(request, files, socket, name);
    ::close(files[0]);
    ::close(files[1]);
    int answer = child;
    if (::send(socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0) return 1;
    if (child < 0) continue;
    while (::waitpid(child, &answer, 0) < 0 && errno == EINTR) {
    }
    if (::send(socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0) return 1;
  }
}

int main_or_server(int count, char** words, char** variables) {
  const char* const socket = std::getenv("TORTURE_SERVER");
  if (socket == nullptr) return program_main(count, words, variables);
  return serve(std::atoi(socket), words[0]);
}

bool allocation_fails(size_t bytes) {
  if (allocation_fault.n == INT64_MAX || bytes < static_cast<size_t>(allocation_fault.what)) return false;
  const int64_t n = state->allocations++;
  if (!is_due(allocation_fault, n)) return false;
  ++state->faults;
  errno = ENOMEM;
  return true;
}

bool is_new(void* caller, size_t bytes) {
  Dl_info library{};
  return bytes >= static_cast<size_t>(allocation_fault.what) && allocation_fault.n != INT64_MAX &&
         ::dladdr(caller, &library) != 0 && std::strstr(library.dli_fname, "libstdc++") != nullptr;
}

}  // namespace

// These stand before the C library's own.
extern "C" {

int __libc_start_main(int (*start)(int, char**, char**), int count, char** words, void (*init)(), void (*fini)(),
                      void (*unload)(), void* stack) {
  program_main = start;
  const auto next = reinterpret_cast<decltype(&__libc_start_main)>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return next(main_or_server, count, words, init, fini, unload, stack);
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return opened(path, flags, flags & (O_CREAT | O_TMPFILE) ? mode : 0);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));

ssize_t write(int file, const void* data, size_t bytes) {
  if (!is_watched(file)) return ::syscall(SYS_write, file, data, bytes);
  if (fails()) return -1;
  const off_t place = ::lseek(file, 0, SEEK_CUR);
  const ssize_t written = ::syscall(SYS_write, file, data, bytes);
  if (written > 0)
    log({.op = "write",
         .inode = inode_of(file),
         .number = place,
         .data = {static_cast<const char*>(data), static_cast<size_t>(written)}});
  return written;
}

int close(int file) {
  const bool counts = is_watched(file);
  if (counts) watched[file] = false;
  // As in a file system whose close fails: the descriptor is gone all the same.
  const bool failed = counts && fails();
  const int saved = errno;
  const int result = static_cast<int>(::syscall(SYS_close, file));
  if (!failed) return result;
  errno = saved;
  return -1;
}

int fsync(int file) {
  // What a crash would leave is found by replay: the disk need not be waited for.
  return on_file(file, {.op = "sync", .inode = inode_of(file)},
                 [&] { return log_file >= 0 && is_watched(file) ? 0 : ::syscall(SYS_fsync, file); });
}
int fdatasync(int file) { return fsync(file); }

int ftruncate(int file, off_t bytes) noexcept {
  return on_file(file, {.op = "truncate", .inode = inode_of(file), .number = bytes},
                 [&] { return ::syscall(SYS_ftruncate, file, bytes); });
}
int ftruncate64(int file, off_t bytes) noexcept __attribute__((alias("ftruncate")));

int posix_fallocate(int file, off_t place, off_t bytes) {
  const int result = on_file(file, {.op = "reserve", .inode = inode_of(file), .number = place + bytes},
                             [&] { return ::syscall(SYS_fallocate, file, 0, place, bytes); });
  return result == 0 ? 0 : errno;
}
int posix_fallocate64(int file, off_t place, off_t bytes) __attribute__((alias("posix_fallocate")));

int flock(int file, int operation) noexcept {
  return on_file(file, {.op = "lock"}, [&] { return ::syscall(SYS_flock, file, operation); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return on_path({.op = "mkdir", .first = path}, [&] { return ::syscall(SYS_mkdirat, AT_FDCWD, path, mode); });
}

int rename(const char* from, const char* to) noexcept {
  return on_path({.op = "rename", .first = from, .second = to},
                 [&] { return ::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); });
}

int unlink(const char* path) noexcept {
  return on_path({.op = "remove", .first = path}, [&] { return ::syscall(SYS_unlinkat, AT_FDCWD, path, 0); });
}

int rmdir(const char* path) noexcept {
  return on_path({.op = "remove", .first = path},
                 [&] { return ::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); });
}

int remove(const char* path) noexcept {
  const int result = unlink(path);
  return result == 0 || errno != EISDIR ? result : rmdir(path);
}

// What operator new asks for. MKL asks for itself, and without memory takes another way, with other rounding.
void* malloc(size_t bytes) {
  const bool fails = is_new(__builtin_return_address(0), bytes) && allocation_fails(bytes);
  return fails ? nullptr : __libc_malloc(bytes);
}

int posix_memalign(void** result, size_t alignment, size_t bytes) {
  void* const found = allocation_fails(bytes) ? nullptr : __libc_memalign(alignment, bytes);
  if (found == nullptr) return ENOMEM;
  *result = found;
  return 0;
}
}
