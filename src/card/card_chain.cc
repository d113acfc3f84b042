#include "card/card_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <ranges>
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

Result<ChainCard> OpenCard(const std::string& path, const std::string& wanted_by) {
  QKV_ASSIGN_OR_RETURN(Card card, Card::Open(path));
  return ChainCard{path, std::make_shared<const Card>(std::move(card)), wanted_by};
}

// What a card says came before it: all of it, or the nearest of it.
std::vector<Digest> Before(const Card& card) {
  std::vector<Digest> before;
  for (const ContextCard& entry : card.info().context) before.push_back(entry.card);
  return before.empty() ? std::vector<Digest>{card.parent()} : before;
}

class ParentFinder {
 public:
  Result<std::vector<ChainCard>> Run(const std::vector<std::string>& paths) {
    std::vector<ChainCard> given;
    for (const std::string& path : paths) {
      QKV_ASSIGN_OR_RETURN(ChainCard card, OpenCard(path, /*wanted_by=*/""));
      ++known_[card.card->content_id()];
      given.push_back(std::move(card));
    }
    for (ChainCard& card : given) {
      QKV_ASSIGN_OR_RETURN(const std::vector<ChainCard> missing, Missing(card));
      for (const ChainCard& before : std::views::reverse(missing)) QKV_RETURN_IF_ERROR(Append(before));
      QKV_RETURN_IF_ERROR(Append(card));
    }
    return std::move(chain_);
  }

 private:
  // What came before the card and is not known. The nearest first.
  Result<std::vector<ChainCard>> Missing(const ChainCard& card) {
    std::vector<ChainCard> missing;
    std::set<Digest> passed;
    for (ChainCard child = card; child.card->has_parent(); child = missing.back()) {
      const bool has_context = !child.card->info().context.empty();
      const std::vector<Digest> before = Before(*child.card);
      passed.insert(child.card->content_id());
      if (std::any_of(before.begin(), before.end(), [&](const Digest& id) { return passed.contains(id); })) {
        return Status(
            StatusCode::kCorrupt,
            fmt::format("{}: its parents lead in a circle, back to itself or one of them; pack again", card.path));
      }
      std::map<Digest, size_t> there = known_;  // a card may be in a context several times
      const size_t passed_by = missing.size();
      for (const Digest& id : std::views::reverse(before)) {
        if (there[id] > 0) {
          --there[id];
          continue;
        }
        QKV_ASSIGN_OR_RETURN(const std::string path, Find(id, child.path));
        QKV_ASSIGN_OR_RETURN(ChainCard found, OpenCard(path, child.path));
        missing.push_back(std::move(found));
      }
      if (has_context || missing.size() == passed_by) break;
    }
    for (const ChainCard& found : missing) ++known_[found.card->content_id()];
    return missing;
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
                    "give it before",
                    child, ToHex(id)));
  }

  Status Append(ChainCard card) {
    const auto continues = [&](const ChainCard& other) { return other.card->content_id() == card.card->parent(); };
    const auto parent = std::find_if(chain_.rbegin(), chain_.rend(), continues);
    const Status status = parent != chain_.rend() ? CheckLink(*parent->card, *card.card) : Status();
    if (!status.ok()) return {status.code(), fmt::format("{} after {}: {}", card.path, parent->path, status.message())};
    chain_.push_back(std::move(card));
    return {};
  }

  std::vector<ChainCard> chain_;
  std::map<Digest, size_t> known_;  // how often they are given, or are in the chain
  std::map<std::filesystem::path, FolderIndex> folders_;
};

// Why a card cannot start where it does after this parent; empty where it can.
std::string WrongStart(const Card& parent, const Card& child) {
  if (const std::vector<ContextCard>& context = child.info().context; !context.empty()) {
    const uint32_t tokens = context.back().tokens;
    if (tokens <= parent.tokens()) return "";
    return fmt::format("it was made on {} tokens of that card, which has {}", tokens, parent.tokens());
  }
  const uint64_t end = uint64_t{parent.first_token()} + parent.tokens();
  if (child.first_token() <= parent.first_token() || child.first_token() > end) {
    return fmt::format("it starts at token {} of its context, and that card holds tokens {} to {}", child.first_token(),
                       parent.first_token(), end - 1);
  }
  const int32_t last = parent.positions()[child.first_token() - parent.first_token() - 1];
  if (int64_t{child.position_offset()} == int64_t{last} + 1) return "";
  return fmt::format("it starts at position {}, and the token before it is at {}", child.position_offset(), last);
}

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
  if (const std::string why = WrongStart(parent, child); !why.empty()) return mismatch(why);
  if (child.profile().kind == ProfileKind::kInherited && child.key_profiles() != parent.key_profiles()) {
    return mismatch("its means and scales are said to be that card's, but are not");
  }
  return {};
}

Result<std::vector<ChainCard>> OpenWithParents(const std::vector<std::string>& paths) {
  return ParentFinder().Run(paths);
}

}  // namespace qkvshare
