#include "card/card_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "card/format.h"

namespace qkvshare {
namespace {

using card_format::FileHeader;

std::string Start(const Digest& digest) { return ToHex(digest).substr(0, 12); }

// Of a file that looks like a card, by its header alone: whoever opens it finds out whether it is one.
std::optional<Digest> ContentIdOf(const std::string& path) {
  const Result<MappedFile> file = MappedFile::Open(path);
  FileHeader header{};
  if (!file || file->bytes().size() < sizeof header) return std::nullopt;
  std::memcpy(&header, file->bytes().data(), sizeof header);
  if (header.magic != card_format::kMagic) return std::nullopt;
  return header.content_id;
}

// The `*.card` files of a folder by content id. Files that are no cards, or cannot be read, are passed over.
using FolderIndex = std::map<Digest, std::filesystem::path>;

Result<FolderIndex> IndexFolder(const std::filesystem::path& folder) {
  FolderIndex index;
  std::error_code error;
  const std::filesystem::path place = folder.empty() ? "." : folder;
  for (std::filesystem::directory_iterator entry(place, error), end; !error && entry != end; entry.increment(error)) {
    const std::filesystem::path path = folder / entry->path().filename();
    if (path.extension() != ".card") continue;
    const std::optional<Digest> id = ContentIdOf(path.string());
    if (!id) continue;
    std::filesystem::path& known = index[*id];
    if (known.empty() || path < known) known = path;
  }
  if (!error) return index;
  return Status(StatusCode::kIo, fmt::format("cannot read folder {}: {}", place.string(), error.message()));
}

Result<ChainCard> OpenCard(const std::string& path, bool found) {
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
  return ChainCard{path, std::make_shared<const Card>(std::move(card)), found};
}

class ParentFinder {
 public:
  Result<std::vector<ChainCard>> Run(const std::vector<std::string>& paths) {
    std::vector<ChainCard> given;
    for (const std::string& path : paths) {
      QKV_ASSIGN_OR_RETURN(ChainCard card, OpenCard(path, /*found=*/false));
      known_.insert(card.card->content_id());
      given.push_back(std::move(card));
    }
    for (ChainCard& card : given) {
      QKV_ASSIGN_OR_RETURN(const std::vector<ChainCard> parents, MissingParents(card));
      for (auto parent = parents.rbegin(); parent != parents.rend(); ++parent) QKV_RETURN_IF_ERROR(Append(*parent));
      QKV_RETURN_IF_ERROR(Append(card));
    }
    return std::move(chain_);
  }

 private:
  // The nearest first.
  Result<std::vector<ChainCard>> MissingParents(const ChainCard& card) {
    std::vector<ChainCard> parents;
    std::set<Digest> passed;
    for (const ChainCard* child = &card; child->card->has_parent(); child = &parents.back()) {
      const Digest& id = child->card->parent();
      passed.insert(child->card->content_id());
      if (passed.contains(id)) {
        return Status(StatusCode::kCorrupt, fmt::format("{}: its parents lead in a circle, back to card {}; pack again",
                                                        card.path, Start(id)));
      }
      if (known_.contains(id)) break;
      QKV_ASSIGN_OR_RETURN(const std::string path, Find(id, child->path));
      QKV_ASSIGN_OR_RETURN(ChainCard parent, OpenCard(path, /*found=*/true));
      parents.push_back(std::move(parent));
    }
    for (const ChainCard& parent : parents) known_.insert(parent.card->content_id());
    return parents;
  }

  Result<std::string> Find(const Digest& id, const std::string& child) {
    const std::filesystem::path folder = std::filesystem::path(child).parent_path();
    auto index = folders_.find(folder);
    if (index == folders_.end()) {
      QKV_ASSIGN_OR_RETURN(FolderIndex made, IndexFolder(folder));
      index = folders_.emplace(folder, std::move(made)).first;
    }
    const auto found = index->second.find(id);
    if (found != index->second.end()) return found->second.string();
    return Status(
        StatusCode::kNotFound,
        fmt::format("{} continues card {}, which is not among the *.card files of its folder: put it there, or "
                    "give it just before",
                    child, ToHex(id)));
  }

  Status Append(ChainCard card) {
    const bool follows = !chain_.empty() && card.card->parent() == chain_.back().card->content_id();
    const Status status = follows ? CheckLink(*chain_.back().card, *card.card) : Status();
    if (!status.ok()) {
      return {status.code(), fmt::format("{} after {}: {}", card.path, chain_.back().path, status.message())};
    }
    chain_.push_back(std::move(card));
    return {};
  }

  std::vector<ChainCard> chain_;
  std::set<Digest> known_;  // that are given, or are in the chain
  std::map<std::filesystem::path, FolderIndex> folders_;
};

}  // namespace

Status CheckLink(const Card& parent, const Card& child) {
  const auto mismatch = [&](const std::string& why) {
    return Status(StatusCode::kMismatch, fmt::format("card {} cannot continue card {}: {}", Start(child.content_id()),
                                                     Start(parent.content_id()), why));
  };
  if (!child.has_parent()) return mismatch("it starts a context");
  if (child.parent() != parent.content_id()) return mismatch("it continues card " + Start(child.parent()));
  if (child.identity().model != parent.identity().model) return mismatch("they are of different models");
  if (child.identity().rope != parent.identity().rope) return mismatch("they were made with different RoPE");
  bool same = child.layers() == parent.layers();
  for (size_t i = 0; same && i < child.layers(); ++i) {
    same = child.shape(i) == parent.shape(i) && child.window(i) == parent.window(i);
  }
  if (!same) return mismatch("their layers are different");
  const uint64_t end = uint64_t{parent.first_token()} + parent.tokens();
  if (child.first_token() <= parent.first_token() || child.first_token() > end) {
    return mismatch(fmt::format("it starts at token {} of its context, and that card holds tokens {} to {}",
                                child.first_token(), parent.first_token(), end - 1));
  }
  const int32_t last = parent.positions()[child.first_token() - parent.first_token() - 1];
  if (int64_t{child.position_offset()} != int64_t{last} + 1) {
    return mismatch(
        fmt::format("it starts at position {}, and the token before it is at {}", child.position_offset(), last));
  }
  if (child.profile().kind == ProfileKind::kInherited && child.key_profiles() != parent.key_profiles()) {
    return mismatch("its means and scales are said to be that card's, but are not");
  }
  return {};
}

Result<std::vector<ChainCard>> OpenWithParents(const std::vector<std::string>& paths) {
  return ParentFinder().Run(paths);
}

}  // namespace qkvshare
