#include "systems/network.hpp"

namespace teal::systems {

std::unique_ptr<Network> make_network(const ModelFile& file, Isa isa) {
    switch (file.load->id) {
        case LoadId::linnos:
        case LoadId::linnos1:
        case LoadId::linnos2: return make_linnos(file, isa);
        case LoadId::mllb: return make_mllb(file, isa);
        case LoadId::kml: return make_kml(file, isa);
        case LoadId::kleio: return make_kleio(file, isa);
    }
    return nullptr;
}

}  // namespace teal::systems
