#include "io/npy.h"
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/npy_bytes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::bytes_of;
using testing::npy_bytes;
using testing::npy_entries;

TEST(Npy, ReadsTypesShapesAndOrders) {
  const TempDir dir;
  const auto read = [&](const std::string& text, const std::string& values) {
    return read_npy(dir.write("x.npy", npy_bytes(text, values)));
  };
  const std::vector<float> six{1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(at::equal(read(npy_entries("<f4", "2, 3"), bytes_of(six)), at::tensor(six).view({2, 3})));
  EXPECT_TRUE(at::equal(read(npy_entries("<f4", "2, 3", "True"), bytes_of(six)), at::tensor(six).view({3, 2}).t()));
  EXPECT_TRUE(at::equal(read(npy_entries("<i8", "2,"), bytes_of<int64_t>({-1, 7})), at::tensor({-1, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(read(npy_entries("|u1", "3,"), "\x01\x02\x03"), at::tensor({1, 2, 3}, at::kByte)));
  EXPECT_EQ(read("'shape': (2,), 'fortran_order': False, \"descr\": '|u1'", "ab").size(0), 2);
  EXPECT_EQ(read(npy_entries("<f8", ""), bytes_of<double>({2.5})).item<double>(), 2.5);
  EXPECT_EQ(read(npy_entries("<f4", "0, 5"), "").sizes(), at::IntArrayRef({0, 5}));
}

TEST(Npy, RefusesWhatIsNoWholePlainArray) {
  const TempDir dir;
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    const std::string path = dir.write("bad.npy", bytes);
    expect_error<DataError>([&] { read_npy(path); }, {"bad.npy", why});
  };
  const std::string good = npy_bytes(npy_entries("<f4", "2,"), std::string(8, 'x'));
  refused(good.substr(0, good.size() - 1), "cut off or changed");
  refused(good + "y", "cut off or changed");
  refused(good.substr(0, 60), "fits into the file");
  std::string later = good;
  later[6] = 4;
  refused(later, "version 4");
  refused("PK\x03\x04" + std::string(40, 'x'), "numpy.savez, expected an array");
  refused(npy_bytes(npy_entries(">f4", "2,"), std::string(8, 'x')), "dtype '>f4'");
  refused(npy_bytes(npy_entries("|O", "2,"), std::string(8, 'x')), "dtype '|O'");
  refused(npy_bytes(npy_entries("<f4", "99999999999, 99999999999"), std::string(8, 'x')), "cut off or changed");
  refused(npy_bytes(npy_entries("<f4", "0, 4611686018427387904, 4611686018427387904"), ""), "cut off or changed");
  refused(npy_bytes("'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)", "1234"), "plain array");
  refused(npy_bytes(std::string(60'000, ' '), ""), "plain array");
  std::string dims;
  for (int i = 0; i < 21'000; ++i) dims += "1,";
  refused(npy_bytes(npy_entries("<f4", dims), "1234"), "more than 32 dimensions");
  refused(npy_bytes(npy_entries("<f4", "2,") + ", 'descr': '<f4'", std::string(8, 'x')), "'descr' twice");
  expect_error<DataError>([] { read_npy("/nowhere/x.npy"); }, {"/nowhere/x.npy"});
}

}  // namespace
}  // namespace duet
