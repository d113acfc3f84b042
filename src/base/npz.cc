#include "base/npz.h"

#include <fmt/format.h>

#include <array>

namespace qkvshare {
namespace {

constexpr uint32_t kLocalHeader = 0x04034B50;
constexpr uint32_t kCentralHeader = 0x02014B50;
constexpr uint32_t kEnd = 0x06054B50;
constexpr uint16_t kVersion = 20;  // needed to extract: 2.0
constexpr uint16_t kMadeOnUnix = 3 << 8;
constexpr uint32_t kMode0600 = 0100600u << 16;

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

uint32_t UpdateCrc(uint32_t crc, ByteSpan bytes) {
  for (const uint8_t byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ byte) & 0xFF];
  return crc;
}

uint64_t ItemBytes(const std::string& dtype) { return static_cast<uint64_t>(dtype.back() - '0'); }

// What stands before the data of a .npy file: magic, version 1.0, and a Python dict padded to 64 bytes.
std::string NpyHeader(const std::string& dtype, const std::vector<uint64_t>& shape) {
  std::string dims;
  for (const uint64_t dim : shape) dims += fmt::format("{}, ", dim);
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", dtype, dims);
  constexpr size_t kBefore = 10;
  dict.resize(AlignUp(kBefore + dict.size() + 1, 64) - kBefore - 1, ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

ByteSpan AsBytes(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

// The fields that the local and the central header share.
void PutCommon(ByteWriter* out, const std::string& name, uint32_t crc, uint32_t bytes) {
  constexpr uint16_t kFirstDay = 0x0021;  // 1980-01-01: the same arrays give the same bytes
  out->Put(kVersion);
  out->Put(uint16_t{0});  // flags
  out->Put(uint16_t{0});  // stored
  out->Put(uint16_t{0});  // time
  out->Put(kFirstDay);
  out->Put(crc);
  out->Put(bytes);
  out->Put(bytes);
  out->Put(static_cast<uint16_t>(name.size()));
  out->Put(uint16_t{0});  // extra fields
}

}  // namespace

uint32_t Crc32(ByteSpan bytes) { return ~UpdateCrc(0xFFFFFFFF, bytes); }

Result<NpzWriter> NpzWriter::Create(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  return NpzWriter(std::move(file));
}

Status NpzWriter::Write(ByteSpan bytes) {
  QKV_RETURN_IF_ERROR(file_.Write(bytes));
  offset_ += bytes.size();
  return {};
}

Status NpzWriter::Add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
                      ByteSpan data) {
  uint64_t expected = ItemBytes(dtype);
  for (const uint64_t dim : shape) expected *= dim;
  if (data.size() != expected) {
    return {StatusCode::kInvalidArgument,
            fmt::format("array {} has {} bytes instead of {}", name, data.size(), expected)};
  }
  if (offset_ + data.size() + kOverheadBytes * (entries_.size() + 1) > kMaxBytes) {
    return {StatusCode::kOutOfRange, fmt::format("with array {} the file would be longer than 4 GiB", name)};
  }
  const std::string header = NpyHeader(dtype, shape);
  Entry entry;
  entry.name = name + ".npy";
  entry.crc = ~UpdateCrc(UpdateCrc(0xFFFFFFFF, AsBytes(header)), data);
  entry.bytes = static_cast<uint32_t>(header.size() + data.size());
  entry.offset = static_cast<uint32_t>(offset_);
  std::vector<uint8_t> local;
  ByteWriter out(&local);
  out.Put(kLocalHeader);
  PutCommon(&out, entry.name, entry.crc, entry.bytes);
  out.PutBytes(entry.name.data(), entry.name.size());
  QKV_RETURN_IF_ERROR(Write(local));
  QKV_RETURN_IF_ERROR(Write(AsBytes(header)));
  QKV_RETURN_IF_ERROR(Write(data));
  entries_.push_back(std::move(entry));
  return {};
}

Status NpzWriter::Finish() {
  std::vector<uint8_t> directory;
  ByteWriter out(&directory);
  for (const Entry& entry : entries_) {
    out.Put(kCentralHeader);
    out.Put(static_cast<uint16_t>(kMadeOnUnix | kVersion));
    PutCommon(&out, entry.name, entry.crc, entry.bytes);
    out.Put(uint16_t{0});  // comment
    out.Put(uint16_t{0});  // disk
    out.Put(uint16_t{0});  // internal attributes
    out.Put(kMode0600);
    out.Put(entry.offset);
    out.PutBytes(entry.name.data(), entry.name.size());
  }
  const auto directory_bytes = static_cast<uint32_t>(directory.size());
  out.Put(kEnd);
  out.Put(uint32_t{0});  // disks
  out.Put(static_cast<uint16_t>(entries_.size()));
  out.Put(static_cast<uint16_t>(entries_.size()));
  out.Put(directory_bytes);
  out.Put(static_cast<uint32_t>(offset_));
  out.Put(uint16_t{0});  // comment
  QKV_RETURN_IF_ERROR(Write(directory));
  return file_.Commit();
}

}  // namespace qkvshare
