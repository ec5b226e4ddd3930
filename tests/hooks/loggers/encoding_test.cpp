#include "hooks/loggers/encoding.h"
#include <gtest/gtest.h>

namespace duet {
namespace {

// Test values of RFC 3720, B.4.
TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

// The examples of protobuf's description of its encoding.
TEST(ProtobufWriter, EncodesAsDocumented) {
  EXPECT_EQ(ProtobufWriter().integer(1, 150).data(), "\x08\x96\x01");
  EXPECT_EQ(ProtobufWriter().text(2, "testing").data(), "\x12\x07testing");
  EXPECT_EQ(ProtobufWriter().message(3, ProtobufWriter().integer(1, 150)).data(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtobufWriter().integer(1, -2).data(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtobufWriter().integer(16, 1).data(), "\x80\x01\x01");
  EXPECT_EQ(ProtobufWriter().float32(1, 1.0F).data(), std::string("\x0d\0\0\x80\x3f", 5));
  EXPECT_EQ(ProtobufWriter().float64(1, -2.0).data(), std::string("\x09\0\0\0\0\0\0\0\xc0", 9));
}

TEST(ProtobufWriter, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(valid_utf8("mIoU \xe2\x86\x91 \"q\" \\ \n"), "mIoU \xe2\x86\x91 \"q\" \\ \n");
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a\xef\xbf\xbd"
            "b");
}

}  // namespace
}  // namespace duet
