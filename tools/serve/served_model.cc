// Makes a generation from an upload.
#include "tools/serve/served_model.h"

#include <algorithm>

#include "tools/serve/sealed_document.h"

namespace stfs::serve {

Result<std::shared_ptr<const ServedModel>> ServedModel::make(const ServedIdentity& identity,
                                                             const ServedLayout& layout,
                                                             const upload::Plan& plan) {
  auto manifest = manifest_of(identity, layout, plan);
  RETURN_IF_ERROR(manifest);
  const std::string text = manifest_text(*manifest);
  auto document = seal_document(text);
  RETURN_IF_ERROR(document);
  const std::shared_ptr<ServedModel> model(new ServedModel);
  model->generation_ = identity.generation;
  model->version_ = identity.version;
  model->manifest_bytes_ = text.size();
  model->descriptors_.push_back(std::move(*document));
  for (const ServedArena& it : layout.arenas) {
    auto shared = it.arena->share();
    RETURN_IF_ERROR(shared);
    model->descriptors_.push_back(std::move(*shared));
  }
  for (const UniqueFd& descriptor : model->descriptors_) model->numbers_.push_back(descriptor.get());
  model->layout_ = layout;
  return model;
}

std::vector<int> ServedModel::descriptors_beyond(const ServedModel& held) const {
  std::vector<int> beyond = {numbers_.front()};
  for (std::size_t at = 0; at < arenas().size(); ++at) {
    if (std::ranges::find(held.arenas(), arenas()[at].number, &ServedArena::number) == held.arenas().end())
      beyond.push_back(numbers_[at + 1]);
  }
  return beyond;
}

}  // namespace stfs::serve
