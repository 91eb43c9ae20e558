// Makes a generation from an upload.
#include "tools/serve/served_model.h"

#include "tools/serve/sealed_document.h"
#include "tools/serve/serve_manifest.h"

namespace stfs::upload {

Result<std::shared_ptr<const ServedModel>> ServedModel::make(std::uint64_t generation,
                                                             std::vector<std::string> sources,
                                                             std::vector<std::shared_ptr<Arena>> arenas,
                                                             const Plan& plan) {
  auto manifest = manifest_of(generation, std::move(sources), arenas, plan);
  if (!manifest) return pass_on(std::move(manifest));
  const std::string text = manifest_text(*manifest);
  auto document = seal_document(text);
  if (!document) return pass_on(std::move(document));
  const std::shared_ptr<ServedModel> model(new ServedModel);
  model->generation_ = generation;
  model->manifest_bytes_ = text.size();
  model->tensor_count_ = plan.tensors.size();
  model->descriptors_.push_back(std::move(*document));
  for (const auto& arena : arenas) {
    auto shared = arena->share();
    if (!shared) return pass_on(std::move(shared));
    model->descriptors_.push_back(std::move(*shared));
    model->size_bytes_ += arena->size_bytes();
  }
  for (const UniqueFd& descriptor : model->descriptors_) model->numbers_.push_back(descriptor.get());
  model->arenas_ = std::move(arenas);
  return model;
}

}  // namespace stfs::upload
